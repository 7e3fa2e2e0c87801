//! Streams and stream capture.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{Code, Handle, OutParam, Outcome};
use crate::api::objects::ObjectKind;
use crate::entry::{ActiveCall, exports};
use crate::state::{self, DriverState};

exports! {
    call cuStreamCreate(stream: OutParam<Handle>, flags: c_uint) = create;
    call cuStreamCreateWithPriority(stream: OutParam<Handle>, flags: c_uint, priority: c_int) =
        create_with_priority;
    call cuGreenCtxStreamCreate(stream: OutParam<Handle>, green: Handle, flags: c_uint,
        priority: c_int) = create_green;
    call cuStreamDestroy(stream: Handle) = destroy;
    call cuStreamDestroy_v2(stream: Handle) = destroy;
    call cuStreamSynchronize(stream: Handle) = synchronize;
    call cuStreamSynchronize_ptsz(stream: Handle) = synchronize;
    call cuStreamQuery(stream: Handle) = query;
    call cuStreamQuery_ptsz(stream: Handle) = query;
    call cuStreamBeginCapture(stream: Handle) = begin_capture_v1;
    call cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) = begin_capture;
    call cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_uint) = begin_capture;
    activity cuStreamEndCapture(stream: Handle, graph: OutParam<Handle>) = end_capture;
    activity cuStreamEndCapture_ptsz(stream: Handle, graph: OutParam<Handle>) = end_capture;
    call cuStreamIsCapturing(stream: Handle, status: OutParam<i32>) = is_capturing;
    call cuStreamIsCapturing_ptsz(stream: Handle, status: OutParam<i32>) = is_capturing;
    call cuCtxGetStreamPriorityRange(least: OutParam<i32>, greatest: OutParam<i32>) = priority_range;
    call cuThreadExchangeStreamCaptureMode(mode: *const c_void) = exchange_mode;
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    context: u32,
    device: usize,
    capture: Option<Capture>,
}

/// An active capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    /// The graph that receives the captured work.
    graph: u32,
    /// Threads that must not make calls that cannot be captured.
    mode: CaptureMode,
    thread: u32,
    /// Such a call was made; the capture has failed.
    invalid: bool,
}

/// The threads that must not make calls that cannot be captured during a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CaptureMode {
    /// All threads.
    Global,
    /// The capturing thread.
    Thread,
    /// No thread.
    Relaxed,
}

/// The stream of a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamTarget {
    pub(crate) device: usize,
    /// The graph that receives captured work.
    pub(crate) capture: Option<u32>,
}

impl DriverState {
    /// Returns the stream of a handle: 0, 1 and 2 are the default streams of the current context.
    /// Fails for a stream whose capture has failed.
    pub(crate) fn stream(&mut self, stream: Handle) -> Result<StreamTarget, Code> {
        if stream <= 2 {
            let device = self.current()?.device;
            // The legacy default stream waits for all others, which cannot be captured.
            if stream < 2 {
                self.cannot_be_captured()?;
            }
            return Ok(StreamTarget { device, capture: None });
        }
        let stream = *self.known_stream(stream)?;
        if stream.capture.is_some_and(|capture| capture.invalid) {
            return Err(Code::CaptureInvalidated);
        }
        let capture = stream.capture.map(|capture| capture.graph);
        Ok(StreamTarget { device: stream.device, capture })
    }

    fn known_stream(&mut self, stream: Handle) -> Result<&mut Stream, Code> {
        let key = self.streams.find(stream).ok_or(Code::InvalidHandle)?;
        self.streams.get_mut(key.index).ok_or(Code::InvalidHandle)
    }

    /// Called by functions that cannot be captured: fails and invalidates captures, if one is
    /// active that forbids them.
    pub(crate) fn cannot_be_captured(&mut self) -> Outcome {
        if self.captures == 0 {
            return Ok(());
        }
        let thread = state::thread();
        let mut result = Ok(());
        self.streams.for_each(|stream| {
            let Some(capture) = &mut stream.capture else { return };
            let forbids = match capture.mode {
                CaptureMode::Global => true,
                CaptureMode::Thread => capture.thread == thread,
                CaptureMode::Relaxed => false,
            };
            if forbids {
                capture.invalid = true;
                result = Err(Code::CaptureUnsupported);
            }
        });
        result
    }

    /// Returns whether a stream of a context is being captured, in any mode.
    pub(crate) fn is_captured(&self, context: u32) -> bool {
        let mut streams = self.streams.iter();
        self.captures > 0
            && streams.any(|(_, stream)| stream.context == context && stream.capture.is_some())
    }

    fn end_stream(&mut self, index: u32) {
        let stream = self.streams.remove(index);
        if let Some(capture) = stream.and_then(|stream| stream.capture) {
            self.captures -= 1;
            self.drop_graph(capture.graph);
        }
    }

    /// Destroys the streams of a context.
    pub(crate) fn end_streams(&mut self, context: u32) {
        let all = self.streams.iter();
        let of_context = all.filter(|(_, stream)| stream.context == context);
        let ended: Vec<u32> = of_context.map(|(index, _)| index).collect();
        for index in ended {
            self.end_stream(index);
            self.objects.released(ObjectKind::Stream);
        }
    }
}

fn create(stream: OutParam<Handle>, flags: c_uint) -> Outcome {
    stream.check()?;
    let mut state = state::running()?;
    let context = state.current()?;
    if flags > 1 {
        return Err(Code::InvalidValue);
    }
    let new = Stream { context: context.index, device: context.device, capture: None };
    open(&mut state, stream, new)
}

fn open(state: &mut DriverState, out: OutParam<Handle>, new: Stream) -> Outcome {
    let key = state.streams.insert(new);
    state.objects.created(ObjectKind::Stream);
    out.set(state.streams.handle(key.index))
}

/// As in real drivers, such a stream outlives the green context: it ends with the primary one.
fn create_green(
    stream: OutParam<Handle>,
    green: Handle,
    flags: c_uint,
    _priority: c_int,
) -> Outcome {
    stream.check()?;
    let mut state = state::running()?;
    // The non-blocking flag (1) is required.
    if flags != 1 {
        return Err(Code::InvalidValue);
    }
    let (context, device) = state.primary_of_green(green)?;
    open(&mut state, stream, Stream { context, device, capture: None })
}

fn create_with_priority(stream: OutParam<Handle>, flags: c_uint, _priority: c_int) -> Outcome {
    create(stream, flags)
}

fn destroy(stream: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.streams.find(stream).ok_or(Code::InvalidHandle)?;
    state.end_stream(key.index);
    state.objects.destroyed(ObjectKind::Stream);
    Ok(())
}

/// Waiting for a stream that is being captured is an error that invalidates the capture.
fn wait(stream: Handle) -> Outcome {
    let mut state = state::running()?;
    let StreamTarget { device, capture } = state.stream(stream)?;
    if capture.is_some() {
        if let Some(capture) = &mut state.known_stream(stream)?.capture {
            capture.invalid = true;
        }
        return Err(Code::CaptureUnsupported);
    }
    state.synchronized(device);
    Ok(())
}

fn synchronize(stream: Handle) -> Outcome {
    wait(stream)
}

/// All work completes immediately here, so a query and a wait are the same.
fn query(stream: Handle) -> Outcome {
    wait(stream)
}

fn begin_capture(stream: Handle, mode: c_uint) -> Outcome {
    let mut state = state::running()?;
    let mode = match mode {
        0 => CaptureMode::Global,
        1 => CaptureMode::Thread,
        2 => CaptureMode::Relaxed,
        _ => return Err(Code::InvalidValue),
    };
    if stream <= 1 {
        return Err(Code::CaptureUnsupported);
    }
    if state.known_stream(stream)?.capture.is_some() {
        return Err(Code::IllegalState);
    }
    let graph = state.new_graph();
    let capture = Capture { graph, mode, thread: state::thread(), invalid: false };
    state.known_stream(stream)?.capture = Some(capture);
    state.captures += 1;
    Ok(())
}

fn begin_capture_v1(stream: Handle) -> Outcome {
    begin_capture(stream, 0)
}

/// Returns whether `cuStreamEndCapture` ends the capture although it returns this error: all
/// capture errors but `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` (903). On driver 580, 901, 904 and 908
/// do.
fn ends_capture(code: c_int) -> bool {
    (900..=908).contains(&code) && code != 903
}

fn end_capture(call: ActiveCall, stream: Handle, graph: OutParam<Handle>) -> Outcome {
    if call.injected.is_some_and(|code| !ends_capture(code)) {
        // An injected failure: nothing is done.
        return call.attempt(|| Ok(()));
    }
    let mut state = state::running()?;
    if stream <= 2 {
        return Err(Code::IllegalState);
    }
    let capture = state.known_stream(stream)?.capture.take().ok_or(Code::IllegalState)?;
    state.captures -= 1;
    let failure = if capture.invalid || call.injected.is_some() {
        Some(Code::CaptureInvalidated)
    } else if capture.mode != CaptureMode::Relaxed && capture.thread != state::thread() {
        Some(Code::CaptureWrongThread)
    } else {
        None
    };
    if failure.is_some() || graph.is_null() {
        state.drop_graph(capture.graph);
        graph.set_if_not_null(0);
        return failure.map_or(Ok(()), Err);
    }
    state.objects.created(ObjectKind::Graph);
    graph.set(state.graphs.graphs.handle(capture.graph))
}

/// Sets the status: not captured (0), captured (1), or invalidated (2).
fn is_capturing(stream: Handle, status: OutParam<i32>) -> Outcome {
    let mut state = state::running()?;
    if stream <= 2 {
        state.current()?;
        return status.set(0);
    }
    let capture = state.known_stream(stream)?.capture;
    status.set(capture.map_or(0, |capture| 1 + i32::from(capture.invalid)))
}

fn priority_range(least: OutParam<i32>, greatest: OutParam<i32>) -> Outcome {
    state::running()?.current()?;
    least.set_if_not_null(0);
    greatest.set_if_not_null(-5);
    Ok(())
}

fn exchange_mode(_mode: *const c_void) -> Outcome {
    drop(state::running()?);
    Ok(())
}
