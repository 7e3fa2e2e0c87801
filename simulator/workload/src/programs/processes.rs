//! Programs with several processes, or with an exec.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::MIB;
use crate::cli::{CommonArgs, IpcChild, Launches, Stressor, StressorProcess};
use crate::cuda::{Device, Driver, NOT_INITIALIZED};
use crate::structs::IpcHandle;
use crate::{print_line, signals};

/// Returns a command that runs this program again.
pub(super) fn this_program(common: &CommonArgs) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["--device", &common.device.to_string()]);
    Ok(command)
}

/// Runs the processes of the stressor and waits for them.
pub(crate) fn stressor(common: &CommonArgs, options: &Stressor) -> anyhow::Result<()> {
    let mut children = Vec::new();
    for number in 0..options.procs {
        let process = &options.process;
        let mut command = this_program(common)?;
        command
            .args(["--seed", &common.seed.wrapping_add(u64::from(number)).to_string()])
            .arg("stressor-process")
            .args(["--duration", &process.duration.to_string()])
            .args(["--min-mb", &process.min_mb.to_string()])
            .args(["--max-mb", &process.max_mb.to_string()])
            .args(["--sleep-ms", &process.sleep_ms.to_string()])
            .args(["--leak-prob", &process.leak_prob.to_string()])
            .args(["--hold-ms", &common.hold_ms.to_string()]);
        children.push(command.spawn().context("cannot start a process")?);
    }
    wait_for_all(children)
}

/// Runs the processes of `launches` and waits for them.
pub(crate) fn launches(common: &CommonArgs, options: &Launches) -> anyhow::Result<()> {
    let mut children = Vec::new();
    for _ in 0..options.processes {
        let mut command = this_program(common)?;
        command
            .arg("launches")
            .args(["--iterations", &options.iterations.to_string()])
            .args(["--kernels", &options.kernels.to_string()])
            .args(["--threads", &options.threads.to_string()])
            .args(["--failing", &options.failing.to_string()])
            .args(["--pause-ms", &options.pause_ms.to_string()])
            .args(["--hold-ms", &common.hold_ms.to_string()]);
        children.push(command.spawn().context("cannot start a process")?);
    }
    wait_for_all(children)
}

/// Waits for processes, and stops them when this one receives a stop signal.
fn wait_for_all(mut children: Vec<Child>) -> anyhow::Result<()> {
    let all = children.len();
    let mut signaled = false;
    let mut failed = 0;
    while !children.is_empty() {
        if signals::stopped() && !signaled {
            signaled = true;
            children.iter().for_each(stop);
        }
        let mut running = Vec::new();
        for mut child in children {
            match child.try_wait()? {
                None => running.push(child),
                Some(status) if status.success() => {}
                Some(_) => failed += 1,
            }
        }
        children = running;
        std::thread::sleep(Duration::from_millis(20));
    }
    if failed > 0 {
        bail!("{failed} of {all} processes failed");
    }
    Ok(())
}

fn stop(child: &Child) {
    let Ok(pid) = c_int::try_from(child.id()) else { return };
    // SAFETY: a child that was not waited for, so its id is still valid.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// Runs one process: an allocation, a pause, and a free unless the allocation is leaked.
pub(crate) fn stress(device: Device, seed: u64, options: &StressorProcess) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let largest = options.max_mb.max(options.min_mb);
    let end = Instant::now() + Duration::from_secs_f64(options.duration.max(0.0));
    while Instant::now() < end {
        let pointer = device.alloc(random.usize(options.min_mb..=largest) * MIB)?;
        let more = signals::sleep_ms(options.sleep_ms);
        if random.f64() >= options.leak_prob {
            device.free(pointer)?;
        }
        if !more {
            break;
        }
    }
    Ok(())
}

/// The parent keeps 8 MiB and 2 MiB, the child 4 MiB.
pub(crate) fn fork(ordinal: c_int) -> anyhow::Result<()> {
    let driver = Driver::load()?;
    let device = Device::open(driver, ordinal)?;
    let _leaked = device.alloc(8 * MIB)?;
    // SAFETY: this program has no other thread, and the child continues as an ordinary process.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        bail!("cannot fork: {}", std::io::Error::last_os_error());
    }
    if pid == 0 {
        return child_of_fork(driver, ordinal);
    }
    print_line(&format!("child {pid}"));
    let freed = device.alloc(MIB)?;
    device.free(freed)?;
    let mut status = 0;
    // SAFETY: waits for the child created above, into a variable of this frame.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            bail!("cannot wait for the child: {error}");
        }
    }
    if status != 0 {
        bail!("the child failed");
    }
    let _leaked = device.alloc(2 * MIB)?;
    Ok(())
}

fn child_of_fork(driver: &'static Driver, ordinal: c_int) -> anyhow::Result<()> {
    match driver.init() {
        // A real driver fails in a forked child.
        Err(error) if error.code == NOT_INITIALIZED => {
            print_line(&format!("this driver cannot be used after a fork: {error}"));
            return Ok(());
        }
        other => other?,
    }
    let device = Device::open(driver, ordinal)?;
    let _leaked = device.alloc(4 * MIB)?;
    let freed = device.alloc(4 * MIB)?;
    device.free(freed)?;
    Ok(())
}

/// Allocates 16 MiB, then executes `leak3`.
pub(crate) fn exec(device: Device, common: &CommonArgs) -> anyhow::Result<()> {
    device.alloc(16 * MIB)?;
    let mut command = this_program(common)?;
    command
        .args(["leak3", "--work-ms", "300", "--wait-ms", "300"])
        .args(["--hold-ms", &common.hold_ms.to_string()]);
    let error = command.exec();
    Err(error).context("cannot exec")
}

/// The parent keeps 8 MiB, which the child opens; the child also keeps 1 MiB of its own.
pub(crate) fn ipc(device: Device, common: &CommonArgs) -> anyhow::Result<()> {
    let pointer = device.alloc(8 * MIB)?;
    let mut handle = IpcHandle { bytes: [0; 64] };
    // SAFETY: the pointer is valid for writing.
    unsafe { device.driver.cuIpcGetMemHandle(&raw mut handle, pointer) }?;
    let mut command = this_program(common)?;
    command
        .args(["ipc-child", "--handle", &handle.to_text()])
        .args(["--hold-ms", &common.hold_ms.to_string()]);
    let mut child = command.spawn().context("cannot start a process")?;
    let mut signaled = false;
    let status = loop {
        if signals::stopped() && !signaled {
            signaled = true;
            stop(&child);
        }
        match child.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if !status.success() {
        bail!("the child failed");
    }
    Ok(())
}

/// Opens the parent's memory twice and closes it once, or opens memory until the parent ends.
pub(crate) fn ipc_child(device: Device, options: &IpcChild) -> anyhow::Result<()> {
    let Some(handle) = &options.handle else { return receive(device, options.keep) };
    let handle = IpcHandle::from_text(handle).context("invalid handle")?;
    let (mut first, mut second) = (0, 0);
    // SAFETY: the pointers are valid for writing; the handle is passed by value.
    unsafe { device.driver.cuIpcOpenMemHandle_v2(&raw mut first, handle, 1) }?;
    // SAFETY: as above.
    unsafe { device.driver.cuIpcOpenMemHandle_v2(&raw mut second, handle, 1) }?;
    if first != second {
        bail!("the same memory was opened at two addresses");
    }
    device.alloc(MIB)?;
    // SAFETY: takes an address that the driver returned.
    unsafe { device.driver.cuIpcCloseMemHandle(second) }?;
    Ok(())
}

/// Number of received buffers that are in use at a time.
const RECEIVED: usize = 4;

/// Opens memory for each line, and closes the oldest; answers each line with the number that was
/// closed.
fn receive(device: Device, keep: bool) -> anyhow::Result<()> {
    let mut open = VecDeque::new();
    for line in std::io::stdin().lines() {
        let handle = IpcHandle::from_text(&line?).context("invalid handle")?;
        let mut pointer = 0;
        // SAFETY: the pointer is valid for writing; the handle is passed by value.
        unsafe { device.driver.cuIpcOpenMemHandle_v2(&raw mut pointer, handle, 1) }?;
        open.push_back(pointer);
        let oldest = if keep || open.len() <= RECEIVED { None } else { open.pop_front() };
        if let Some(oldest) = oldest {
            // SAFETY: takes an address that the driver returned.
            unsafe { device.driver.cuIpcCloseMemHandle(oldest) }?;
        }
        print_line(&u32::from(oldest.is_some()).to_string());
    }
    Ok(())
}

/// A child process that opens memory of this one.
pub(super) struct Receiver {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Receiver {
    /// Starts it; `keep`: it never closes what it opened.
    pub(super) fn start(ordinal: c_int, keep: bool) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--device", &ordinal.to_string(), "ipc-child"]);
        command.args(keep.then_some("--keep"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Self { child, answers })
    }

    /// Sends memory; returns whether the oldest that was sent is closed.
    pub(super) fn send(&mut self, device: &Device, pointer: u64) -> anyhow::Result<bool> {
        let mut handle = IpcHandle { bytes: [0; 64] };
        // SAFETY: the pointer is valid for writing.
        unsafe { device.driver.cuIpcGetMemHandle(&raw mut handle, pointer) }?;
        let input = self.child.stdin.as_mut().context("no pipe")?;
        writeln!(input, "{}", handle.to_text())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim() == "1")
    }

    /// Ends it.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the child failed");
        Ok(())
    }
}
