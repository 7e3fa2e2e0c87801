//! A wrapped call: remembered at entry, recorded at return, by the rules of `call.h`.

use crate::area::{Row, TENSOR_ACTION};
use crate::thread::{self, Inflight, Thread};
use crate::wire::{
    Call, CallDescriptor, VS_ACTION_CAPTURE_BEGIN, VS_ACTION_CAPTURE_END, VS_ACTION_CONTEXT_CREATE,
    VS_ACTION_CONTEXT_DESTROY, VS_ACTION_CONTEXT_SET, VS_ACTION_COPY, VS_ACTION_GRAPH_LAUNCH,
    VS_ACTION_LAUNCH, VS_ACTION_LAUNCH_CONFIG, VS_ACTION_NAME, VS_ACTION_RECORD,
    VS_ACTION_GET_NAME, VS_CALL, VS_CALL_DESCRIPTOR, VS_CAPTURE_ENDED, VS_CLASS_ALLOCATE,
    VS_CLASS_OBJECT, VS_CLASS_OTHER, VS_CONTEXT_KNOWN, VS_DESCRIPTOR, VS_INFLIGHT, VS_OBJECT,
    VS_OUT_UNREADABLE, VS_WITH_STACK, WireHook,
};
use crate::wrapper::{Frame, PASS, RETURN};
use crate::{copy, emit, graph, launch, loss, name, process, stack, start, tensor};

/// Result of a call that had no memory for the request: its arguments were valid.
const OUT_OF_MEMORY: i32 = 2;

/// Decides how a call continues.
///
/// # Safety
///
/// `frame` is the wrapper's.
pub(crate) unsafe extern "C" fn enter(frame: *mut Frame) -> u32 {
    // SAFETY: the wrapper's frame lives through the call, and is the calling thread's.
    let frame = unsafe { &mut *frame };
    frame.target = process::moved_entry(frame.hook);
    frame.stack_words = 0;
    if !process::is_running() && !process::resume() {
        return PASS;
    }
    let Some(row) = process::row(frame.hook) else { return PASS };
    if row.hook.action == TENSOR_ACTION {
        tensor::enter(frame, row);
        return PASS;
    }
    match u32::from(row.hook.action) {
        VS_ACTION_LAUNCH | VS_ACTION_LAUNCH_CONFIG => launch::enter(frame, row),
        VS_ACTION_GRAPH_LAUNCH if !process::counts_activity() && !graph::needs_graph_record() => PASS,
        _ => begin(frame, row),
    }
}

fn begin(frame: &mut Frame, row: &Row) -> u32 {
    let action = u32::from(row.hook.action);
    let Some(thread) = thread::own() else {
        loss::count_unseen(frame, &row.hook);
        return PASS;
    };
    // Some frameworks set the same context again and again: nothing changes, whatever the driver
    // returns.
    if action == VS_ACTION_CONTEXT_SET
        && thread.is_context_known()
        && thread.context() == frame.args[0]
    {
        return PASS;
    }
    let sp = frame.sp();
    // Calls that were left without returning (longjmp, exceptions) lie deeper in the stack.
    let mut level = thread.inflight as usize;
    while level > 0 && thread.calls[(level - 1) % VS_INFLIGHT].sp <= sp {
        level -= 1;
    }
    thread.inflight = level as u32;
    if level >= VS_INFLIGHT {
        if is_nested(thread, &row.hook) {
            return PASS;
        }
        if (VS_ACTION_CONTEXT_SET..=VS_ACTION_CONTEXT_DESTROY).contains(&action) {
            thread.set_contexts_unknown();
        }
        loss::count_unseen(frame, &row.hook);
        return PASS;
    }
    thread.calls[level % VS_INFLIGHT] = Inflight { sp, hook: frame.hook };
    thread.inflight = level as u32 + 1;
    frame.level = level as u64;
    frame.set_stack_words(row.stack_words);
    frame.entered = emit::now();
    RETURN
}

/// Whether a hooked function that another one calls is a detail of it: only the outer one counts.
/// Calls inside of one that concerns contexts are not, and what makes or destroys an object has only
/// objects as its details.
fn is_nested(thread: &Thread, inner: &WireHook) -> bool {
    let outer = thread.inflight as usize;
    if outer == 0 {
        return false;
    }
    let hook = thread.calls[(outer - 1) % VS_INFLIGHT].hook;
    let Some(outer) = process::row(hook).map(|row| &row.hook) else { return false };
    if u32::from(outer.flags & inner.flags) & VS_OBJECT != 0 {
        return true;
    }
    !matches!(u32::from(outer.loss_class), VS_CLASS_OTHER | VS_CLASS_OBJECT)
}

/// Records a call that returned.
///
/// # Safety
///
/// `frame` is the wrapper's, with the result of the function.
pub(crate) unsafe extern "C" fn leave(frame: *mut Frame) {
    // SAFETY: as in `enter`.
    let frame = unsafe { &mut *frame };
    // A fork inside the call: the child has no state of it.
    if !process::is_running() {
        return;
    }
    let Some(row) = process::row(frame.hook) else { return };
    let result = frame.result as i32;
    if matches!(u32::from(row.hook.action), VS_ACTION_LAUNCH | VS_ACTION_LAUNCH_CONFIG) {
        launch::leave(frame, row, result);
        return;
    }
    let Some(thread) = thread::existing() else { return };
    thread.inflight = frame.level as u32;
    if is_nested(thread, &row.hook) {
        return;
    }
    end(frame, thread, &row.hook, result);
    if row.retries_torch != 0 {
        start::wrap_torch();
    }
}

fn end(frame: &Frame, thread: &mut Thread, hook: &WireHook, result: i32) {
    let action = u32::from(hook.action);
    if process::counts_activity() && end_activity(frame, thread, hook, result) {
        return;
    }
    let mut out = 0;
    if matches!(action, VS_ACTION_RECORD | VS_ACTION_CONTEXT_CREATE | VS_ACTION_CONTEXT_DESTROY)
        || action >= VS_ACTION_CAPTURE_BEGIN
    {
        graph::apply(hook, frame.args[0], result, thread.tid);
        let takes_stack = u32::from(hook.loss_class) == VS_CLASS_ALLOCATE
            || u32::from(hook.flags) & VS_WITH_STACK != 0;
        let taken = if takes_stack { stack::take(frame, thread) } else { stack::Taken::NONE };
        out = record(frame, thread, hook, result, &taken);
    }
    if result == 0 {
        thread.apply_context(action, frame.args[0], out);
    }
}

/// Handles calls about work instead of memory. True when no record is needed.
fn end_activity(frame: &Frame, thread: &Thread, hook: &WireHook, result: i32) -> bool {
    match u32::from(hook.action) {
        VS_ACTION_GRAPH_LAUNCH => {
            launch::count_graph(frame.args[0], result);
            result == 0 && !graph::needs_graph_record()
        }
        VS_ACTION_COPY if result == 0 => {
            copy::count(frame, thread, hook);
            true
        }
        VS_ACTION_NAME | VS_ACTION_GET_NAME if result == 0 => {
            kernel_name::record(frame, thread, hook);
            true
        }
        _ => false,
    }
}

/// Writes the record of a call. Returns the first out value.
fn record(
    frame: &Frame,
    thread: &Thread,
    hook: &WireHook,
    result: i32,
    taken: &stack::Taken,
) -> u64 {
    let mut flags = taken.flags;
    let mut outs = [0; 2];
    if result == 0 {
        for (which, value) in outs.iter_mut().enumerate() {
            *value = loss::out_value(frame, hook, which).unwrap_or(0);
        }
    }
    if u32::from(hook.action) == VS_ACTION_CAPTURE_END && graph::capture_ended(result) {
        flags |= VS_CAPTURE_ENDED;
    }
    if thread.is_context_known() {
        flags |= VS_CONTEXT_KNOWN;
    }
    let has_descriptor = hook.descriptor_bytes > 0;
    let kind = if has_descriptor { VS_CALL_DESCRIPTOR } else { VS_CALL };
    let mut head = emit::head(kind, thread.tid);
    (head.hook, head.result) = (frame.hook as u16, result);
    let call = Call {
        head,
        entered: frame.entered,
        context: thread.context(),
        args: frame.args,
        outs,
        device: -1,
        flags,
        stack: taken.stack,
        python: taken.python,
    };
    let written = if has_descriptor {
        emit::write(&described(frame, hook, call))
    } else {
        emit::write(&call)
    };
    if !written {
        lose(frame, hook, result, outs[0]);
    }
    outs[0]
}

fn lose(frame: &Frame, hook: &WireHook, result: i32, out: u64) {
    if result != 0 {
        loss::count_call(hook, 0, result);
        return;
    }
    let bytes = loss::bytes(frame, hook, true);
    if !loss::has_no_effect(frame, hook, bytes, out) {
        loss::count_call(hook, bytes, 0);
    }
}

/// Adds the structure that the program handed to the driver. It is read only where the driver has
/// accepted it: a call that fails for another reason may have had a wild pointer.
fn described(frame: &Frame, hook: &WireHook, mut call: Call) -> CallDescriptor {
    let mut descriptor = [0_u8; VS_DESCRIPTOR];
    let from = frame.argument(hook.descriptor_argument);
    let bytes = usize::from(hook.descriptor_bytes).min(VS_DESCRIPTOR);
    if from != 0 && matches!(call.head.result, 0 | OUT_OF_MEMORY) {
        // SAFETY: the driver read at least that much of the structure in this call.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, descriptor.as_mut_ptr(), bytes);
        }
    } else {
        call.flags |= VS_OUT_UNREADABLE;
    }
    CallDescriptor { call, descriptor }
}
