//! Copies of linear ranges. Device memory has no contents here: copies are checked and counted.

pub(crate) mod batch;
pub(crate) mod memset;
pub(crate) mod shaped;
pub(crate) mod side;

use std::time::Duration;

use crate::abi::{Code, DevicePointer, Handle, Outcome};
use crate::api::copy::side::{CopySide, CopySize, MemoryType};
use crate::entry::{ActiveCall, exports, pause};
use crate::oracle::activity::{CopyDirection, LaunchOutcome};
use crate::settings;
use crate::state::{self, DriverState};

exports! {
    activity cuMemcpy(to: u64, from: u64, bytes: usize) = copy;
    activity cuMemcpy_ptds(to: u64, from: u64, bytes: usize) = copy;
    activity cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) = copy_async;
    activity cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: Handle) = copy_async;
    activity cuMemcpyHtoD_v2(to: DevicePointer, from: u64, bytes: usize) = to_device;
    activity cuMemcpyHtoD_v2_ptds(to: DevicePointer, from: u64, bytes: usize) = to_device;
    activity cuMemcpyHtoDAsync_v2(to: DevicePointer, from: u64, bytes: usize, stream: Handle) =
        to_device_async;
    activity cuMemcpyHtoDAsync_v2_ptsz(to: DevicePointer, from: u64, bytes: usize, stream: Handle) =
        to_device_async;
    activity cuMemcpyDtoH_v2(to: u64, from: DevicePointer, bytes: usize) = to_host;
    activity cuMemcpyDtoH_v2_ptds(to: u64, from: DevicePointer, bytes: usize) = to_host;
    activity cuMemcpyDtoHAsync_v2(to: u64, from: DevicePointer, bytes: usize, stream: Handle) =
        to_host_async;
    activity cuMemcpyDtoHAsync_v2_ptsz(to: u64, from: DevicePointer, bytes: usize, stream: Handle) =
        to_host_async;
    activity cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) = on_device;
    activity cuMemcpyDtoD_v2_ptds(to: DevicePointer, from: DevicePointer, bytes: usize) = on_device;
    activity cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize,
        stream: Handle) = on_device_async;
    activity cuMemcpyDtoDAsync_v2_ptsz(to: DevicePointer, from: DevicePointer, bytes: usize,
        stream: Handle) = on_device_async;
    activity cuMemcpyPeer(to: DevicePointer, to_context: Handle, from: DevicePointer,
        from_context: Handle, bytes: usize) = peer;
    activity cuMemcpyPeer_ptds(to: DevicePointer, to_context: Handle, from: DevicePointer,
        from_context: Handle, bytes: usize) = peer;
    activity cuMemcpyPeerAsync(to: DevicePointer, to_context: Handle, from: DevicePointer,
        from_context: Handle, bytes: usize, stream: Handle) = peer_async;
    activity cuMemcpyPeerAsync_ptsz(to: DevicePointer, to_context: Handle, from: DevicePointer,
        from_context: Handle, bytes: usize, stream: Handle) = peer_async;
}

/// A copy of any shape.
pub(crate) struct CopyRequest {
    pub(crate) to: CopySide,
    pub(crate) from: CopySide,
    pub(crate) size: CopySize,
    /// Contexts of a peer copy, destination first.
    pub(crate) peers: Option<[Handle; 2]>,
    /// Stream of an asynchronous copy.
    pub(crate) stream: Option<Handle>,
}

impl CopyRequest {
    /// Creates a copy of one range.
    pub(crate) fn plain(
        to: MemoryType,
        from: MemoryType,
        bytes: usize,
        stream: Option<Handle>,
    ) -> Self {
        let (to, from) = (CopySide::plain(to), CopySide::plain(from));
        Self { to, from, size: [bytes as u64, 1, 1], peers: None, stream }
    }

    /// Returns the direction of the copy.
    pub(crate) fn direction(&self, state: &DriverState) -> CopyDirection {
        match self.peers {
            Some(_) => CopyDirection::Peer,
            None => state.direction(self.to.memory, self.from.memory),
        }
    }

    /// Fails unless both sides exist.
    pub(crate) fn check(&self, state: &DriverState) -> Outcome {
        for context in self.peers.into_iter().flatten() {
            state.check_context(context)?;
        }
        state.check_side(&self.to, self.size)?;
        state.check_side(&self.from, self.size)
    }
}

impl DriverState {
    /// Enqueues work on a stream, or runs it synchronously without one.
    pub(crate) fn begin(
        &mut self,
        call: ActiveCall,
        stream: Option<Handle>,
    ) -> Result<LaunchOutcome, Code> {
        let Some(stream) = stream else {
            self.current()?;
            if !call.is_per_thread() {
                self.cannot_be_captured()?;
            }
            return Ok(LaunchOutcome::Executed);
        };
        let target = self.stream(call.stream(stream))?;
        Ok(if target.capture.is_some() { LaunchOutcome::Captured } else { LaunchOutcome::Executed })
    }

    /// Counts a copy or a memset.
    pub(crate) fn count_copy(
        &mut self,
        call: ActiveCall,
        direction: CopyDirection,
        asynchronous: bool,
        result: Result<(LaunchOutcome, u64), Code>,
    ) {
        let copies = self.activity.copies.entry((call.name, direction, asynchronous)).or_default();
        match result {
            Ok((LaunchOutcome::Executed, bytes)) => {
                copies.calls += 1;
                copies.bytes = copies.bytes.saturating_add(bytes);
            }
            Ok((LaunchOutcome::Captured, _)) => copies.captured += 1,
            Err(_) => copies.failed += 1,
        }
    }
}

/// Performs a copy.
pub(crate) fn perform(call: ActiveCall, request: &CopyRequest) -> Outcome {
    let mut state = state::running()?;
    let direction = request.direction(&state);
    let result = call.attempt(|| {
        let done = state.begin(call, request.stream)?;
        request.check(&state)?;
        Ok((done, side::bytes(request.size)?))
    });
    state.count_copy(call, direction, request.stream.is_some(), result);
    drop(state);
    let (_, bytes) = result?;
    if request.stream.is_none() {
        simulate_duration(bytes);
    }
    Ok(())
}

/// Waits as long as the copy takes at the configured bandwidth.
fn simulate_duration(bytes: u64) {
    if let Some(bandwidth) = settings::get().bandwidth {
        pause(Duration::from_secs_f64(bytes as f64 / bandwidth as f64));
    }
}

fn copy(call: ActiveCall, to: u64, from: u64, bytes: usize) -> Outcome {
    perform(
        call,
        &CopyRequest::plain(MemoryType::Unified(to), MemoryType::Unified(from), bytes, None),
    )
}

fn copy_async(call: ActiveCall, to: u64, from: u64, bytes: usize, stream: Handle) -> Outcome {
    let (to, from) = (MemoryType::Unified(to), MemoryType::Unified(from));
    perform(call, &CopyRequest::plain(to, from, bytes, Some(stream)))
}

fn to_device(call: ActiveCall, to: DevicePointer, from: u64, bytes: usize) -> Outcome {
    perform(call, &CopyRequest::plain(MemoryType::Device(to), MemoryType::Host(from), bytes, None))
}

fn to_device_async(
    call: ActiveCall,
    to: DevicePointer,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    let (to, from) = (MemoryType::Device(to), MemoryType::Host(from));
    perform(call, &CopyRequest::plain(to, from, bytes, Some(stream)))
}

fn to_host(call: ActiveCall, to: u64, from: DevicePointer, bytes: usize) -> Outcome {
    perform(call, &CopyRequest::plain(MemoryType::Host(to), MemoryType::Device(from), bytes, None))
}

fn to_host_async(
    call: ActiveCall,
    to: u64,
    from: DevicePointer,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    let (to, from) = (MemoryType::Host(to), MemoryType::Device(from));
    perform(call, &CopyRequest::plain(to, from, bytes, Some(stream)))
}

fn on_device(call: ActiveCall, to: DevicePointer, from: DevicePointer, bytes: usize) -> Outcome {
    perform(
        call,
        &CopyRequest::plain(MemoryType::Device(to), MemoryType::Device(from), bytes, None),
    )
}

fn on_device_async(
    call: ActiveCall,
    to: DevicePointer,
    from: DevicePointer,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    let (to, from) = (MemoryType::Device(to), MemoryType::Device(from));
    perform(call, &CopyRequest::plain(to, from, bytes, Some(stream)))
}

fn peer(
    call: ActiveCall,
    to: DevicePointer,
    to_context: Handle,
    from: DevicePointer,
    from_context: Handle,
    bytes: usize,
) -> Outcome {
    let request = CopyRequest::plain(MemoryType::Device(to), MemoryType::Device(from), bytes, None);
    perform(call, &CopyRequest { peers: Some([to_context, from_context]), ..request })
}

fn peer_async(
    call: ActiveCall,
    to: DevicePointer,
    to_context: Handle,
    from: DevicePointer,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    let request =
        CopyRequest::plain(MemoryType::Device(to), MemoryType::Device(from), bytes, Some(stream));
    perform(call, &CopyRequest { peers: Some([to_context, from_context]), ..request })
}
