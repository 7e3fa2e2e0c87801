//! A simulated NVML: stands in for `libnvidia-ml.so.1` on the devices of the simulated driver.
//!
//! It reads the file that processes share (`SIM_STATE_FILE`; the driver's `shared_devices` module
//! describes it). Without one, `SIM_DEVICES` and `SIM_MEMORY` define the devices, and they are
//! unused.
//!
//! With `SIM_UNIFIED_MEMORY`, the devices report neither total nor used memory, as GPUs that share
//! their memory with the CPU; memory of processes is still reported.
//!
//! With `SIM_MIG=N`, each device has N instances. A process is on the one that its
//! `CUDA_VISIBLE_DEVICES` names, else on the first; the instances report the memory of their processes.
//!
//! `SIM_NVML_FAULT` names a file: while it contains `code N`, every call fails with that result, and
//! while it contains `delay N`, every call takes that many milliseconds.

#![allow(non_snake_case, reason = "the names are NVML's")]

mod fault;
mod state;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use state::DeviceState;

/// Result codes of NVML.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
enum Code {
    Success = 0,
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
}

type Outcome = Result<(), Code>;

/// Number of initializations without a shutdown.
static USERS: AtomicU32 = AtomicU32::new(0);

/// A C out-parameter.
///
/// Values come from C callers only, which promise that the pointer is null or may be written.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: not null, and the caller promised that it can be written.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    fn get(self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: not null, and the caller promised a valid value in a parameter that is also an
        // input.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Stores several values; the caller promised room for them.
    fn fill(self, values: &[T]) -> Outcome {
        if self.0.is_null() && !values.is_empty() {
            return Err(Code::InvalidArgument);
        }
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the caller promised room for at least as many values.
            unsafe { self.0.add(i).write_unaligned(*value) };
        }
        Ok(())
    }
}

impl Out<c_char> {
    /// Stores a zero-terminated text, if there is room.
    fn set_text(self, text: &str, capacity: c_uint) -> Outcome {
        if text.len() >= capacity as usize {
            return Err(Code::InsufficientSize);
        }
        let bytes: Vec<c_char> = text.bytes().chain([0]).map(|b| b as c_char).collect();
        self.fill(&bytes)
    }
}

/// `nvmlMemory_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Memory2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The version field of callers: the size of the structure and its layout number.
#[expect(clippy::cast_possible_truncation, reason = "40 bytes")]
const MEMORY_2: c_uint = size_of::<Memory2>() as c_uint | 2 << 24;

/// `nvmlProcessInfo_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Devices are numbers here; a handle is the number plus one, so that it is never null. Handles of MIG
/// instances are larger by a multiple of [`INSTANCE`].
type Device = usize;

/// Distance between the handles of two instances.
const INSTANCE: usize = 1000;

/// Returns the number of MIG instances per device.
fn instances() -> usize {
    std::env::var("SIM_MIG").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the number of the instance of a handle, if it is one.
const fn instance_of(handle: Device) -> Option<usize> {
    (handle / INSTANCE).checked_sub(1)
}

/// Returns the state, once NVML is initialized.
fn state() -> Result<DeviceState, Code> {
    if USERS.load(Ordering::Acquire) == 0 {
        return Err(Code::Uninitialized);
    }
    Ok(DeviceState::read())
}

/// Returns the state, and the index of a device.
fn device(handle: Device) -> Result<(DeviceState, usize), Code> {
    let state = state()?;
    let index = (handle % INSTANCE).checked_sub(1).filter(|index| *index < state.devices);
    Ok((state, index.ok_or(Code::InvalidArgument)?))
}

fn init() -> Outcome {
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

fn shutdown() -> Outcome {
    let less = |users: u32| users.checked_sub(1);
    let result = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    result.map(|_| ()).map_err(|_| Code::Uninitialized)
}

fn count(count: Out<c_uint>) -> Outcome {
    count.set(c_uint::try_from(state()?.devices).unwrap_or(0))
}

fn handle_by_index(index: c_uint, handle: Out<Device>) -> Outcome {
    let state = state()?;
    if index as usize >= state.devices {
        return Err(Code::InvalidArgument);
    }
    handle.set(index as usize + 1)
}

fn index_of(handle: Device, index: Out<c_uint>) -> Outcome {
    let (_, found) = device(handle)?;
    index.set(c_uint::try_from(found).unwrap_or(0))
}

/// Stores the UUID of the simulated driver: `VRAMSCOPE-SIM-` and the ordinal.
fn uuid(handle: Device, text: Out<c_char>, capacity: c_uint) -> Outcome {
    let (_, index) = device(handle)?;
    let text_of = uuid_of(index, instance_of(handle));
    text.set_text(&text_of, capacity)
}

/// Returns the UUID of a device or instance.
fn uuid_of(index: usize, instance: Option<usize>) -> String {
    let bytes = match instance {
        Some(instance) => format!("VRAMSCOPE-MI{instance:02}{index:02}").into_bytes(),
        None => format!("VRAMSCOPE-SIM-{index:02}").into_bytes(),
    };
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    let parts = [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)];
    let prefix = if instance.is_some() { "MIG" } else { "GPU" };
    format!("{prefix}-{}", parts.join("-"))
}

fn name(handle: Device, text: Out<c_char>, capacity: c_uint) -> Outcome {
    device(handle)?;
    let suffix = if instance_of(handle).is_some() { " MIG 1g.3gb" } else { "" };
    text.set_text(&format!("Simulated GPU{suffix}"), capacity)
}

fn memory_info(handle: Device, memory: Out<Memory>) -> Outcome {
    let (total, used) = memory_of(handle)?;
    memory.set(Memory { total, free: total - used, used })
}

/// Nothing is reserved for the driver itself.
fn memory_info_2(handle: Device, memory: Out<Memory2>) -> Outcome {
    let (total, used) = memory_of(handle)?;
    memory.set(Memory2 { version: MEMORY_2, total, reserved: 0, free: total - used, used })
}

/// Returns total and used memory of a device.
fn memory_of(handle: Device) -> Result<(u64, u64), Code> {
    let (state, index) = device(handle)?;
    if std::env::var_os("SIM_UNIFIED_MEMORY").is_some() {
        return Err(Code::NotSupported);
    }
    let total = state.memory;
    let used = state.processes.iter().map(|process| process.uses(index)).sum::<u64>().min(total);
    Ok((total, used))
}

/// Lists the processes with a context on the device.
fn running_processes(handle: Device, count: Out<c_uint>, processes: Out<Process>) -> Outcome {
    let (state, index) = device(handle)?;
    let all: Vec<Process> = state
        .processes
        .iter()
        .filter(|process| process.uses(index) > 0)
        .filter(|process| {
            instance_of(handle).is_none_or(|wanted| chosen_instance(process.pid, index) == wanted)
        })
        .map(|process| Process {
            pid: process.pid,
            used: process.uses(index),
            gpu_instance: c_uint::MAX,
            compute_instance: c_uint::MAX,
        })
        .collect();
    let capacity = count.get()? as usize;
    count.set(c_uint::try_from(all.len()).unwrap_or(c_uint::MAX))?;
    if all.len() > capacity {
        return Err(Code::InsufficientSize);
    }
    processes.fill(&all)
}

/// Returns the instance that the environment of a process names, else the first.
fn chosen_instance(pid: c_uint, index: usize) -> usize {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let entries = environment.split(|byte| *byte == 0);
    let wanted = entries.into_iter().find_map(|one| one.strip_prefix(b"CUDA_VISIBLE_DEVICES="));
    let named = |instance: &usize| wanted == Some(uuid_of(index, Some(*instance)).as_bytes());
    (0..instances()).find(named).unwrap_or(0)
}

fn instance_count(handle: Device, count: Out<c_uint>) -> Outcome {
    device(handle)?;
    count.set(c_uint::try_from(instances()).unwrap_or(0))
}

fn instance_handle(handle: Device, number: c_uint, instance: Out<Device>) -> Outcome {
    device(handle)?;
    if number as usize >= instances() {
        return Err(Code::NotFound);
    }
    instance.set(handle % INSTANCE + INSTANCE * (number as usize + 1))
}

fn mig_mode(handle: Device, current: Out<c_uint>, pending: Out<c_uint>) -> Outcome {
    device(handle)?;
    let mode = c_uint::from(instances() > 0);
    current.set(mode)?;
    pending.set(mode)
}

fn driver_version(text: Out<c_char>, capacity: c_uint) -> Outcome {
    state()?;
    text.set_text("580.0.0-simulated", capacity)
}

fn cuda_version(version: Out<c_int>) -> Outcome {
    version.set(13_000)
}

/// Exports functions: each line is NVML's prototype and its implementation.
macro_rules! exports {
    ($($name:ident($($arg:ident: $ty:ty),*) = $target:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) -> c_int {
                if let Some(code) = fault::result() {
                    return code;
                }
                $target($($arg),*).map_or_else(|code| code as c_int, |()| Code::Success as c_int)
            }
        )*
    };
}

exports! {
    nvmlInit() = init;
    nvmlInit_v2() = init;
    nvmlShutdown() = shutdown;
    nvmlDeviceGetCount_v2(value: Out<c_uint>) = count;
    nvmlDeviceGetHandleByIndex_v2(number: c_uint, handle: Out<Device>) = handle_by_index;
    nvmlDeviceGetIndex(handle: Device, value: Out<c_uint>) = index_of;
    nvmlDeviceGetUUID(handle: Device, text: Out<c_char>, capacity: c_uint) = uuid;
    nvmlDeviceGetName(handle: Device, text: Out<c_char>, capacity: c_uint) = name;
    nvmlDeviceGetMemoryInfo(handle: Device, memory: Out<Memory>) = memory_info;
    nvmlDeviceGetMemoryInfo_v2(handle: Device, memory: Out<Memory2>) = memory_info_2;
    nvmlDeviceGetComputeRunningProcesses_v3(handle: Device, room: Out<c_uint>,
        processes: Out<Process>) = running_processes;
    nvmlDeviceGetMaxMigDeviceCount(handle: Device, count: Out<c_uint>) = instance_count;
    nvmlDeviceGetMigDeviceHandleByIndex(handle: Device, number: c_uint, instance: Out<Device>) =
        instance_handle;
    nvmlDeviceGetMigMode(handle: Device, current: Out<c_uint>, pending: Out<c_uint>) = mig_mode;
    nvmlSystemGetDriverVersion(text: Out<c_char>, capacity: c_uint) = driver_version;
    nvmlSystemGetCudaDriverVersion(version: Out<c_int>) = cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) = cuda_version;
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text: &'static CStr = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
