//! Streams, and the capture of what is put into them.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{Code, Handle, Out, Outcome};
use crate::entry::exports;
use crate::state::{self, State};

exports! {
    call cuStreamCreate(stream: Out<Handle>, flags: c_uint) = create;
    call cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) =
        create_with_priority;
    call cuStreamDestroy(stream: Handle) = destroy;
    call cuStreamDestroy_v2(stream: Handle) = destroy;
    call cuStreamSynchronize(stream: Handle) = synchronize;
    call cuStreamSynchronize_ptsz(stream: Handle) = synchronize;
    call cuStreamQuery(stream: Handle) = query;
    call cuStreamQuery_ptsz(stream: Handle) = query;
    call cuStreamBeginCapture(stream: Handle) = begin_capture_v1;
    call cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) = begin_capture;
    call cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_uint) = begin_capture;
    call cuStreamEndCapture(stream: Handle, graph: Out<Handle>) = end_capture;
    call cuStreamEndCapture_ptsz(stream: Handle, graph: Out<Handle>) = end_capture;
    call cuStreamIsCapturing(stream: Handle, status: Out<i32>) = is_capturing;
    call cuStreamIsCapturing_ptsz(stream: Handle, status: Out<i32>) = is_capturing;
    call cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = priority_range;
    call cuThreadExchangeStreamCaptureMode(mode: *const c_void) = exchange_mode;
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) context: u32,
    pub(crate) device: usize,
    /// The graph that what is put in becomes a part of.
    pub(crate) capture: Option<u32>,
}

/// What a stream handle means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) device: usize,
    pub(crate) capture: Option<u32>,
}

impl State {
    /// The stream behind a handle: 0, 1 and 2 are the default streams of the current context.
    pub(crate) fn stream(&self, stream: Handle) -> Result<Target, Code> {
        if stream <= 2 {
            let device = self.current()?.device;
            return Ok(Target { device, capture: None });
        }
        let key = self.streams.find(stream).ok_or(Code::InvalidHandle)?;
        let stream = self.streams.get(key.index).ok_or(Code::InvalidHandle)?;
        Ok(Target { device: stream.device, capture: stream.capture })
    }

    /// Ends the streams of a context.
    pub(crate) fn end_streams(&mut self, context: u32) {
        let ended: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .map(|(index, _)| index)
            .collect();
        for index in ended {
            let stream = self.streams.remove(index);
            if let Some(graph) = stream.and_then(|stream| stream.capture) {
                self.drop_graph(graph);
            }
        }
    }
}

fn create(stream: Out<Handle>, flags: c_uint) -> Outcome {
    stream.check()?;
    let mut state = state::running()?;
    let context = state.current()?;
    if flags > 1 {
        return Err(Code::InvalidValue);
    }
    let new = Stream { context: context.index, device: context.device, capture: None };
    let key = state.streams.insert(new);
    stream.set(state.streams.handle(key.index))
}

fn create_with_priority(stream: Out<Handle>, flags: c_uint, _priority: c_int) -> Outcome {
    create(stream, flags)
}

fn destroy(stream: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.streams.find(stream).ok_or(Code::InvalidHandle)?;
    let stream = state.streams.remove(key.index).ok_or(Code::InvalidHandle)?;
    if let Some(graph) = stream.capture {
        state.drop_graph(graph);
    }
    Ok(())
}

fn synchronize(stream: Handle) -> Outcome {
    let mut state = state::running()?;
    let Target { device, capture } = state.stream(stream)?;
    if capture.is_some() {
        return Err(Code::CaptureUnsupported);
    }
    state.synchronized(device);
    Ok(())
}

fn query(stream: Handle) -> Outcome {
    let state = state::running()?;
    let Target { capture, .. } = state.stream(stream)?;
    if capture.is_some() { Err(Code::CaptureUnsupported) } else { Ok(()) }
}

fn begin_capture(stream: Handle, mode: c_uint) -> Outcome {
    let mut state = state::running()?;
    if mode > 2 {
        return Err(Code::InvalidValue);
    }
    if stream <= 1 {
        return Err(Code::CaptureUnsupported);
    }
    let key = state.streams.find(stream).ok_or(Code::InvalidHandle)?;
    if state.streams.get(key.index).is_some_and(|stream| stream.capture.is_some()) {
        return Err(Code::IllegalState);
    }
    let graph = state.new_graph();
    if let Some(stream) = state.streams.get_mut(key.index) {
        stream.capture = Some(graph);
    }
    Ok(())
}

fn begin_capture_v1(stream: Handle) -> Outcome {
    begin_capture(stream, 0)
}

fn end_capture(stream: Handle, graph: Out<Handle>) -> Outcome {
    graph.check()?;
    let mut state = state::running()?;
    let key = state.streams.find(stream).ok_or(Code::InvalidHandle)?;
    let stream = state.streams.get_mut(key.index).ok_or(Code::InvalidHandle)?;
    let captured = stream.capture.take().ok_or(Code::IllegalState)?;
    graph.set(state.graphs.graphs.handle(captured))
}

fn is_capturing(stream: Handle, status: Out<i32>) -> Outcome {
    let Target { capture, .. } = state::running()?.stream(stream)?;
    status.set(i32::from(capture.is_some()))
}

fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Outcome {
    state::running()?.current()?;
    least.set_if_wanted(0);
    greatest.set_if_wanted(-5);
    Ok(())
}

fn exchange_mode(_mode: *const c_void) -> Outcome {
    drop(state::running()?);
    Ok(())
}
