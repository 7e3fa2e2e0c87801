//! `vramscope trace`: live reports, and the loop of all verbs that trace.

mod command_user;
pub(crate) mod exit_status;
pub(crate) mod kernels;
pub(crate) mod launcher;
pub(crate) mod record;
pub(crate) mod run;

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capture::command::{self, StandardStreams};
use capture::in_process::CollectorDir;
use capture::plan::AttachMode;
use capture::session::{ActivityOptions, SessionOptions, Target};
use engine::model::{AllocatorMode, Bytes, GpuId, Nanos, Pid, StackMode};
use engine::snapshot::{ListScope, SnapshotOptions};
use formats::report::view::gpu_facts;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::commands::agent_report::AgentReport;
use crate::files::leak_gate;
use crate::io::output;
use crate::io::output_file::{Planned, shown};
use crate::io::signals::pipe_of;
use crate::live::pipeline::LiveTrace;
use crate::live::print;
use crate::live::process_filter::ProcessFilter;
use crate::live::recorder::Recorder;
use crate::live::report_loop::{LiveFormat, LiveReport, LiveView, ReportOptions};
use crate::{Outcome, cli};

/// Time that a command may take to exit after Ctrl-C before the final report is printed without it.
pub(crate) const COMMAND_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time until the exit of a target or a signal is noticed.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The same, after the first seconds.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Number of signals that end the process without a final report. `timeout` sends two: one to the
/// process, one to its group.
const SIGNALS_TO_ABORT: usize = 3;

/// Default sizes of the rings of a process that is traced in-process. Each process has its own
/// rings, in shared memory, which containers often limit to 64 MiB.
pub(crate) const IN_PROCESS_RING_BYTES: u32 = 8 << 20;
pub(crate) const IN_PROCESS_STACK_RING_BYTES: u32 = 4 << 20;

/// Environment variable with the directories that Python imports from first.
const PYTHON_PATH: &str = "PYTHONPATH";

/// Runs the verb.
pub(crate) fn run_verb(options: &cli::TraceArgs) -> Result<Outcome> {
    match &options.agent {
        Some(url) => print_agent(url, options),
        None => run_trace(&trace_options(&options.target, &options.live)?),
    }
}

/// Prints the state of an agent.
fn print_agent(url: &str, options: &cli::TraceArgs) -> Result<Outcome> {
    let live = &options.live;
    let format = live.format.get();
    let mut filter = process_filter(&options.target, live);
    filter.pids = options.target.pid.iter().copied().map(Pid).collect();
    let report = AgentReport {
        url,
        token_file: options.token_file.as_deref(),
        filter,
        view: LiveView::of(live.by, live.allocations, format)?,
        format,
        top: live.top.unwrap_or(DEFAULT_LAST_ROWS),
        leak: live.leak,
        stack_depth: live.stack_depth,
        fail_on_leak: live.limit.fail_on_leak,
    };
    let mut out = output::results_from(&[], live.output.as_deref(), live.force)?;
    let outcome = report.print(&mut out)?;
    out.finish()?;
    Ok(live.limit.outcome(outcome))
}

/// Returns the processes that the options select.
fn process_filter(target: &cli::TargetArgs, options: &cli::LiveArgs) -> ProcessFilter {
    ProcessFilter {
        pids: Vec::new(),
        gpu: options.gpu.map(GpuId),
        // With a command, the user is the one who runs it.
        user: options.user.clone().filter(|_| target.command.is_empty()),
        name: options.name.clone(),
    }
}

/// Returns the options of a verb that traces with live reports.
pub(crate) fn trace_options<'a>(
    target: &'a cli::TargetArgs,
    options: &'a cli::LiveArgs,
) -> Result<TraceOptions<'a>> {
    let format = options.format.get();
    print::check_stack_depth(options.stack_depth, format)?;
    let stacks = options.stacks.stacks.unwrap_or(StackMode::Full);
    Ok(TraceOptions {
        duration: options.times.duration,
        format: Some(format),
        output: options.output.as_deref(),
        record: options.record.as_deref(),
        force: options.force,
        limit: Some(&options.limit),
        activity: activity_if_enabled(options.kernels, &options.launches)?,
        view: LiveView::of(options.by, options.allocations, format)?,
        objects: !options.objects.no_objects,
        stacks,
        allocators: allocators(options.allocators.allocators, stacks),
        stack_depth: options.stack_depth,
        wrappers: &options.wrappers.wrapper,
        user: options.user.as_deref(),
        reports: ReportOptions {
            snapshot: snapshot_options(options),
            top: options.top.unwrap_or(DEFAULT_LAST_ROWS),
            leak: options.leak,
            more: more_hint(options.record.as_deref()),
            filter: process_filter(target, options),
            in_place: target.command.is_empty(),
            why: false,
        },
        ..TraceOptions::new(target, options.times.interval)
    })
}

/// Rows per list of the last report without `--top`.
const DEFAULT_LAST_ROWS: usize = 20;

/// Returns how to see the evidence of a leak.
fn more_hint(recording: Option<&Path>) -> String {
    match recording {
        Some(path) => format!("vramscope report {} --leak 1", shown(path)),
        None => "trace with --record FILE, then `vramscope report FILE --leak 1`".to_owned(),
    }
}

/// Processes that are traced in-process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InProcessMode {
    /// A command and its children.
    Command,
    /// The parent of this process, which sets the environment variables itself, and its children.
    Parent,
}

/// Options of a verb that traces.
pub(crate) struct TraceOptions<'a> {
    pub(crate) target: &'a cli::TargetArgs,
    /// How a library in the processes captures the calls; None: probes do.
    pub(crate) in_process: Option<InProcessMode>,
    pub(crate) interval: Duration,
    pub(crate) duration: Option<Duration>,
    /// None: nothing is reported, only recorded.
    pub(crate) format: Option<LiveFormat>,
    pub(crate) output: Option<&'a Path>,
    pub(crate) record: Option<&'a Path>,
    /// Existing files are overwritten.
    pub(crate) force: bool,
    pub(crate) limit: Option<&'a cli::FailOnLeakArgs>,
    pub(crate) activity: Option<ActivityOptions>,
    pub(crate) view: LiveView,
    /// CUDA objects (streams, events and the like) are tracked.
    pub(crate) objects: bool,
    pub(crate) stacks: StackMode,
    pub(crate) allocators: AllocatorMode,
    pub(crate) stack_depth: Option<usize>,
    /// Functions that are never the headline of a call stack.
    pub(crate) wrappers: &'a [String],
    /// User that runs the command; None: the one who called sudo.
    pub(crate) user: Option<&'a str>,
    pub(crate) reports: ReportOptions,
}

impl<'a> TraceOptions<'a> {
    /// Returns the options of a trace with full stacks that neither reports nor records.
    pub(crate) fn new(target: &'a cli::TargetArgs, interval: Duration) -> Self {
        Self {
            target,
            in_process: None,
            interval,
            duration: None,
            format: None,
            output: None,
            record: None,
            force: false,
            limit: None,
            activity: None,
            view: LiveView::Overview,
            objects: true,
            stacks: StackMode::Full,
            allocators: AllocatorMode::Off,
            stack_depth: None,
            wrappers: &[],
            user: None,
            reports: ReportOptions::default(),
        }
    }
}

/// Traces and reports until something ends the trace. With a command, its exit code is passed on.
pub(crate) fn run_trace(settings: &TraceOptions<'_>) -> Result<Outcome> {
    let outcome = trace(settings);
    if settings.target.command.is_empty() {
        outcome
    } else {
        exit_status::own_failure_outcome(outcome)
    }
}

/// Runs the trace. Output files are checked first and opened when the probes are attached, so a
/// failed start leaves existing files unchanged.
fn trace(settings: &TraceOptions<'_>) -> Result<Outcome> {
    let (reports, recording) = outputs(settings)?;
    let interrupted = watch_signals()?;
    let streams = command_streams(settings, reports.as_ref(), recording.as_ref());
    let dir = settings.in_process.map(|_| CollectorDir::create()).transpose()?;
    let environment = match &dir {
        Some(dir) => in_process_environment(dir, settings.reports.why)?,
        None => Vec::new(),
    };
    let suspended = match settings.target.command.as_slice() {
        [] => None,
        command => {
            // In-process tracing needs no privileges, and its files belong to this user.
            let user = if dir.is_some() { None } else { command_user::of_command(settings.user)? };
            Some(spawn(command, streams, &environment, user.as_ref())?)
        }
    };
    let target = target(settings.target, suspended.as_ref().map(command::SuspendedCommand::pid));
    let options = session_options(settings, target.clone())?;
    let live = match dir {
        Some(dir) => LiveTrace::start_in_process(options, dir)?,
        None => LiveTrace::start(options)?,
    };
    for pid in settings.target.pid.iter().filter(|pid| !has_driver(**pid)) {
        output::log(&format!("process {pid} has not loaded libcuda.so: it has no GPU memory yet"));
    }
    let mut out = output::reports(reports)?;
    out.style.stack_depth = settings.stack_depth.unwrap_or(out.style.stack_depth);
    let mut report =
        LiveReport::new(&live, settings.reports.clone(), settings.view, settings.format, out);
    report.verbose = output::settings().verbose;
    report.add_wrappers(settings.wrappers);
    if let Some(file) = recording {
        let counts_activity = settings.activity.is_some();
        report
            .record(|context| Recorder::start(file, context, settings.target, counts_activity))?;
    }
    let is_for_parent = settings.in_process == Some(InProcessMode::Parent);
    if is_for_parent {
        run::announce(&environment, &interrupted)?;
    }
    let command = suspended.map(TracedCommand::release).transpose()?;
    let records_only = settings.format.is_none() && !is_for_parent;
    let mut trace = TraceLoop { settings, target, command, records_only, report };
    trace.run(&live, &interrupted)?;
    trace.finish(live)
}

/// Returns the environment variables of a command that is traced in-process, in addition to those of
/// this process.
pub(crate) fn in_process_environment(
    dir: &CollectorDir,
    why: bool,
) -> Result<Vec<(OsString, OsString)>> {
    let mut variables = dir.environment();
    if why {
        let own = dir.python_path().context("--why")?.into_os_string();
        let inherited = std::env::var_os(PYTHON_PATH).filter(|path| !path.is_empty());
        let paths = [Some(own), inherited].into_iter().flatten();
        variables.push((PYTHON_PATH.into(), std::env::join_paths(paths)?));
    }
    Ok(variables)
}

/// Starts a command as its user: see [`command_user`].
fn spawn(
    command: &[OsString],
    streams: StandardStreams<'_>,
    environment: &[(OsString, OsString)],
    user: Option<&command_user::CommandUser>,
) -> Result<command::SuspendedCommand> {
    if let Some(user) = user {
        output::log(&format!("running the command as {}; --user changes that", user.name));
    }
    let run_as = user.map(|user| &user.run_as);
    Ok(command::spawn_suspended(command, streams, environment, run_as)?)
}

/// Returns a flag that Ctrl-C and SIGTERM set. The final report may block on a reader, so further
/// signals end the process at once.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let mut signals = pipe_of(&[SIGINT, SIGTERM]).context("cannot watch for signals")?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.read_exact(&mut [0; SIGNALS_TO_ABORT]).is_ok() {
            let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
        }
    })?;
    Ok(interrupted)
}

/// Checks the files for reports and for the recording. A pipe blocks here until it has a reader.
fn outputs(settings: &TraceOptions<'_>) -> Result<(Option<Planned>, Option<Planned>)> {
    let check = |path: Option<&Path>| path.map(|path| Planned::check(path, settings.force));
    let mut reports = check(settings.output).transpose()?;
    let mut recording = check(settings.record).transpose()?;
    if let Some(recording) = &recording {
        let shared = match &reports {
            Some(reports) => reports.is_same(recording),
            None => settings.format.is_some() && recording.is_stdout(),
        };
        if shared {
            bail!("cannot write reports and the recording to the same file");
        }
    }
    for file in reports.iter_mut().chain(&mut recording) {
        file.connect()?;
    }
    Ok((reports, recording))
}

/// Returns the tensor mode that `--allocators` selects. Without call stacks, tensors cannot be attributed
/// to lines.
pub(crate) fn allocators(mode: Option<AllocatorMode>, stacks: StackMode) -> AllocatorMode {
    let default =
        if stacks.is_enabled() { AllocatorMode::WhileGrowing } else { AllocatorMode::Off };
    mode.unwrap_or(default)
}

/// Returns how launches and copies are counted, if they are.
pub(crate) fn activity_if_enabled(
    kernels: bool,
    options: &cli::LaunchArgs,
) -> Result<Option<ActivityOptions>> {
    if !kernels && options.check_launches.is_some() {
        bail!("--check-launches requires --kernels");
    }
    Ok(kernels.then(|| activity_options(options)))
}

/// Returns how launches and copies are counted.
pub(crate) fn activity_options(options: &cli::LaunchArgs) -> ActivityOptions {
    ActivityOptions {
        check_every_launch: options.check_launches == Some(true),
        table_entries: options.activity_table_size,
        baseline: options.empty_launch_probes,
    }
}

/// Keeps the command's output off standard output if JSON or a recording goes there: a program
/// reads it.
fn command_streams(
    settings: &TraceOptions<'_>,
    reports: Option<&Planned>,
    recording: Option<&Planned>,
) -> StandardStreams<'static> {
    let json = settings.format == Some(LiveFormat::Json) && reports.is_none_or(Planned::is_stdout);
    if json || recording.is_some_and(Planned::is_stdout) {
        StandardStreams::OutputToError
    } else {
        StandardStreams::Same
    }
}

fn target(options: &cli::TargetArgs, command: Option<Pid>) -> Target {
    match command {
        Some(pid) => Target::Processes { pids: vec![pid], follow: true },
        None if options.pid.is_empty() => Target::All,
        None => Target::Processes {
            pids: options.pid.iter().copied().map(Pid).collect(),
            follow: options.follow_forks,
        },
    }
}

/// Whether a process has loaded a CUDA driver, or that cannot be read.
fn has_driver(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps"));
    maps.map_or(true, |maps| maps.windows(10).any(|part| part == b"libcuda.so"))
}

/// Returns the size of a ring buffer.
fn ring(requested: Option<Bytes>, default: u32) -> Result<u32> {
    let Some(Bytes(bytes)) = requested else { return Ok(default) };
    let bytes = u32::try_from(bytes).context("ring buffer size too large")?;
    if !bytes.is_power_of_two() || bytes < 4096 {
        bail!("ring buffer size must be a power of two, at least 4096");
    }
    Ok(bytes)
}

/// Returns the options of the capture session.
fn session_options(settings: &TraceOptions<'_>, target: Target) -> Result<SessionOptions> {
    let options = settings.target;
    let (ring_bytes, stack_ring_bytes) = match settings.in_process {
        Some(_) => (IN_PROCESS_RING_BYTES, IN_PROCESS_STACK_RING_BYTES),
        None => (SessionOptions::RING_BYTES, SessionOptions::STACK_RING_BYTES),
    };
    let is_mode = |mode: &AttachMode| options.attach_mode.as_deref() == Some(mode.name());
    Ok(SessionOptions {
        drivers: options.driver.clone(),
        ring_bytes: ring(options.ring_size, ring_bytes)?,
        table_entries: options.process_table_size,
        thread_entries: options.thread_table_size,
        attach_mode: AttachMode::ALL.into_iter().find(is_mode),
        activity: settings.activity,
        objects: settings.objects,
        stacks: settings.stacks,
        allocators: settings.allocators,
        stack_ring_bytes: ring(options.stack_ring_size, stack_ring_bytes)?,
        empty_probes: options.empty_probes,
        ..SessionOptions::new(target)
    })
}

/// The traced command.
pub(crate) struct TracedCommand {
    pub(crate) pid: Pid,
    running: command::RunningCommand,
    /// How it ended.
    pub(crate) status: Option<ExitStatus>,
}

impl TracedCommand {
    /// Resumes the command.
    pub(crate) fn release(suspended: command::SuspendedCommand) -> Result<Self> {
        let pid = suspended.pid();
        let running =
            suspended.release().context("the command exited before it could be traced")?;
        Ok(Self { pid, running, status: None })
    }

    /// Whether the command has ended.
    pub(crate) fn has_exited(&mut self) -> Result<bool> {
        self.status = self.running.try_wait()?;
        Ok(self.status.is_some())
    }

    /// Returns the exit code to pass on.
    pub(crate) fn outcome(&self) -> Outcome {
        let Some(status) = self.status else {
            let pid = self.pid;
            output::log(&format!("the command (pid {pid}) is still running, no longer traced"));
            return Outcome::Success;
        };
        if !status.success() {
            output::log(&format!("the command failed: {status}"));
        }
        exit_status::command_outcome(status)
    }
}

struct TraceLoop<'a> {
    settings: &'a TraceOptions<'a>,
    target: Target,
    command: Option<TracedCommand>,
    records_only: bool,
    report: LiveReport,
}

impl TraceLoop<'_> {
    /// Applies events and prints reports until something ends the trace.
    fn run(&mut self, live: &LiveTrace, interrupted: &AtomicBool) -> Result<()> {
        let start = Instant::now();
        let end = self.settings.duration.map(|duration| start + duration);
        let mut next_report = start + self.settings.interval;
        let mut stop_at = None;
        loop {
            let now = Instant::now();
            if interrupted.load(Ordering::Relaxed) && stop_at.is_none() {
                // The terminal also interrupts the command: let it finish, to see its last frees.
                stop_at =
                    Some(if self.command.is_some() { now + COMMAND_EXIT_TIMEOUT } else { now });
            }
            self.report.tick();
            // `record` has no other output: stop when the recording fails.
            let ended = self.targets_exited()?
                || self.report.has_failed()
                || (self.records_only && !self.report.is_recording());
            if ended || [end, stop_at].into_iter().flatten().any(|deadline| now >= deadline) {
                return Ok(());
            }
            if now >= next_report {
                self.report.report()?;
                // After a pause (a stopped terminal), do not catch up on missed reports.
                next_report = (next_report + self.settings.interval).max(Instant::now());
            }
            let deadline = end.map_or(next_report, |end| end.min(next_report));
            let poll = (now.duration_since(start) / 16).clamp(POLL_INTERVAL, MAX_POLL_INTERVAL);
            if let Some(message) = live.next(deadline.min(now + poll)) {
                self.report.handle(message);
            }
        }
    }

    fn targets_exited(&mut self) -> Result<bool> {
        if let Some(command) = &mut self.command {
            return command.has_exited();
        }
        Ok(match &self.target {
            Target::Processes { pids, follow: false } => {
                pids.iter().all(|pid| std::fs::metadata(format!("/proc/{pid}")).is_err())
            }
            _ => false,
        })
    }

    /// Detaches the probes, prints the final report and evaluates the leak threshold.
    fn finish(mut self, live: LiveTrace) -> Result<Outcome> {
        let (last, recorded) = self.report.finish(live)?;
        let is_untraced = last.processes.is_empty() && last.uncertainty.lost.processes == 0;
        if self.settings.in_process == Some(InProcessMode::Command) && is_untraced {
            output::log(
                "nothing was traced: no process called cuInit, or its driver does not load \
                 CUDA_INJECTION64_PATH",
            );
        }
        let gpus = gpu_facts(&self.report.context().gpus);
        let threshold = self.settings.limit.and_then(|limit| limit.fail_on_leak);
        let verdict = threshold
            .map_or(Outcome::Success, |threshold| leak_gate::evaluate(&last, &gpus, threshold));
        let verdict = self.settings.limit.map_or(verdict, |limit| limit.outcome(verdict));
        let outcome = if recorded == Outcome::Success { verdict } else { recorded };
        let of_command = self.command.map_or(Outcome::Success, |command| command.outcome());
        Ok(if outcome == Outcome::Success { of_command } else { outcome })
    }
}

fn snapshot_options(options: &cli::LiveArgs) -> SnapshotOptions {
    let json = options.format.get() == LiveFormat::Json;
    let min_age = options.min_age.map_or(0, |age| age.as_millis());
    SnapshotOptions {
        top: options.top.unwrap_or(if json { 1000 } else { 10 }),
        min_size: options.min_size.unwrap_or_default(),
        min_age: Nanos::from_millis(u64::try_from(min_age).unwrap_or(u64::MAX)),
        sort: options.sort,
        top_sites: options.top.unwrap_or(if json { 100 } else { 10 }),
        ended_sites: false,
        lists: ListScope::All,
    }
}
