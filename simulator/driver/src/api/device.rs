//! Devices, versions and error texts.

use std::ffi::{c_char, c_int};

use super::injection;
use crate::abi::{Code, CuDevice, OutParam, Outcome, describe};
use crate::entry::exports;
use crate::oracle::json;
use crate::settings;
use crate::state::exit;
use crate::state::shared_devices::SharedDevices;
use crate::state::{self, DriverPhase};

exports! {
    call cuInit(flags: u32) = init;
    call cuDriverGetVersion(version: OutParam<i32>) = driver_version;
    call cuDeviceGet(device: OutParam<i32>, ordinal: c_int) = get;
    call cuDeviceGetCount(count: OutParam<i32>) = count;
    call cuDeviceGetName(name: OutParam<u8>, len: c_int, device: CuDevice) = name;
    call cuDeviceTotalMem_v2(bytes: OutParam<usize>, device: CuDevice) = total_memory;
    call cuDeviceGetAttribute(value: OutParam<i32>, attribute: c_int, device: CuDevice) = attribute;
    call cuDeviceGetUuid(uuid: OutParam<[u8; 16]>, device: CuDevice) = uuid;
    call cuDeviceGetUuid_v2(uuid: OutParam<[u8; 16]>, device: CuDevice) = uuid;
    call cuGetErrorName(code: c_int, text: OutParam<*const c_char>) = error_name;
    call cuGetErrorString(code: c_int, text: OutParam<*const c_char>) = error_string;
}

/// CUDA version of the drivers whose entry points are imitated.
const VERSION: i32 = if cfg!(feature = "prologue-cmpl") { 12_040 } else { 13_000 };

fn init(flags: u32) -> Outcome {
    if flags != 0 {
        return Err(Code::InvalidValue);
    }
    let settings = settings::get();
    if settings.devices == 0 {
        return Err(Code::NoDevice);
    }
    let first = {
        let mut state = state::lock();
        match state.phase {
            DriverPhase::Deinitialized => return Err(Code::Deinitialized),
            DriverPhase::Running => false,
            DriverPhase::Uninitialized => {
                if let Some(path) = &settings.shared {
                    let shared = SharedDevices::join(path, settings);
                    state.shared = Some(shared.map_err(|error| json::log_error(path, &error))?);
                }
                state.phase = DriverPhase::Running;
                true
            }
        }
    };
    if first {
        std::thread::sleep(settings.init_time);
    }
    injection::load(first);
    if first && settings.oracle_dir.is_some() {
        json::prepare();
        exit::catch_signals();
    }
    Ok(())
}

fn driver_version(version: OutParam<i32>) -> Outcome {
    version.set(VERSION)
}

fn get(device: OutParam<i32>, ordinal: c_int) -> Outcome {
    state::running()?.device(ordinal)?;
    device.set(ordinal)
}

fn count(count: OutParam<i32>) -> Outcome {
    drop(state::running()?);
    count.set(i32::try_from(settings::get().devices).unwrap_or(0))
}

fn name(name: OutParam<u8>, len: c_int, device: CuDevice) -> Outcome {
    state::running()?.device(device)?;
    let capacity = usize::try_from(len).ok().filter(|n| *n > 0).ok_or(Code::InvalidValue)?;
    let mut text = b"Simulated GPU".to_vec();
    text.truncate(capacity - 1);
    text.push(0);
    name.fill(&text)
}

fn total_memory(bytes: OutParam<usize>, device: CuDevice) -> Outcome {
    state::running()?.device(device)?;
    bytes.set(usize::try_from(settings::get().memory).unwrap_or(usize::MAX))
}

fn attribute(value: OutParam<i32>, attribute: c_int, device: CuDevice) -> Outcome {
    state::running()?.device(device)?;
    value.set(match attribute {
        1 => 1024,         // threads in a block
        10 => 32,          // warp size
        16 => 132,         // multiprocessors
        75 => 9,           // compute capability, major
        76 => 0,           // compute capability, minor
        19 | 41 | 83 => 1, // mapped host memory, unified addressing, managed memory
        102 | 103 => 1,    // virtual memory management, shareable by file descriptor
        115 => 1,          // memory pools
        33 => device + 1,  // PCI bus
        34 | 50 => 0,      // PCI device, PCI domain
        _ => 0,
    })
}

/// Returns the UUID of a device, which is the same on every machine: `VRAMSCOPE-SIM` and the
/// ordinal.
pub(crate) fn uuid_of(ordinal: usize) -> [u8; 16] {
    let mut uuid = *b"VRAMSCOPE-SIM-00";
    let ordinal = u8::try_from(ordinal % 100).unwrap_or(0);
    uuid[14] = b'0' + ordinal / 10;
    uuid[15] = b'0' + ordinal % 10;
    uuid
}

fn uuid(uuid: OutParam<[u8; 16]>, device: CuDevice) -> Outcome {
    let ordinal = state::running()?.device(device)?;
    uuid.set(uuid_of(ordinal))
}

fn error_name(code: c_int, text: OutParam<*const c_char>) -> Outcome {
    match describe(code) {
        Some((name, _)) => text.set(name.as_ptr()),
        None => text.set(std::ptr::null()).and(Err(Code::InvalidValue)),
    }
}

fn error_string(code: c_int, text: OutParam<*const c_char>) -> Outcome {
    match describe(code) {
        Some((_, string)) => text.set(string.as_ptr()),
        None => text.set(std::ptr::null()).and(Err(Code::InvalidValue)),
    }
}
