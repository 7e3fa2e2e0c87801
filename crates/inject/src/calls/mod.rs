//! A wrapped call: kept at entry, recorded at return, as in `call.h`.

mod block;
mod context;
mod copy;
pub(crate) mod emit;
pub(crate) mod graph;
mod kernel_name;
mod launch;
pub(crate) mod loss;
pub(crate) mod python;
pub(crate) mod stack;
pub(crate) mod thread;

pub(crate) use block::arguments as block_arguments;

use std::sync::atomic::Ordering;

use self::stack::StackRef;
use self::thread::{InflightCall, ThreadState};
use crate::area::{FIRST_BLOCK_FUNCTION, Row};
use crate::wire::{
    Call, CallDescriptor, VS_ACTION_CAPTURE_BEGIN, VS_ACTION_CAPTURE_END, VS_ACTION_CONTEXT_CREATE,
    VS_ACTION_CONTEXT_DESTROY, VS_ACTION_CONTEXT_SET, VS_ACTION_COPY, VS_ACTION_GET_NAME,
    VS_ACTION_GRAPH_LAUNCH, VS_ACTION_LAUNCH, VS_ACTION_LAUNCH_CONFIG, VS_ACTION_LAUNCH_LIST,
    VS_ACTION_LAUNCH_UNSHAPED, VS_ACTION_NAME, VS_ACTION_RECORD, VS_BY_VALUE, VS_CALL,
    VS_CALL_DESCRIPTOR, VS_CAPTURE_ENDED, VS_CLASS_ALLOCATE, VS_CLASS_OBJECT, VS_CLASS_OTHER,
    VS_CONTEXT_KNOWN, VS_DATA, VS_DESCRIPTOR, VS_FABRIC, VS_FATBIN_WRAPPER, VS_FATBIN_WRAPPER_DATA,
    VS_FATBIN_WRAPPER_VERSION, VS_FILE, VS_INFLIGHT, VS_MAX_HOOKS, VS_OBJECT, VS_OUT_UNREADABLE,
    VS_WITH_STACK, WireHook,
};
use crate::wrapper::{Frame, PASS, RETURN};
use crate::{allocators, process};

/// `CUDA_ERROR_OUT_OF_MEMORY`: the arguments of the call were valid.
const OUT_OF_MEMORY: i32 = 2;

/// Handles the entry of a call. Returns how the wrapper continues: [`PASS`] or [`RETURN`].
///
/// # Safety
///
/// `frame` is the wrapper's.
pub(crate) unsafe extern "C" fn enter(frame: *mut Frame) -> u32 {
    // SAFETY: the wrapper's frame outlives the call and belongs to the calling thread.
    let frame = unsafe { &mut *frame };
    frame.target = process::moved_entry(frame.hook);
    frame.stack_words = 0;
    if !process::is_running() && !process::resume() {
        return PASS;
    }
    let Some(row) = process::row(frame.hook) else {
        count_unknown(frame.hook);
        return PASS;
    };
    match u32::from(row.hook.action) {
        VS_ACTION_LAUNCH | VS_ACTION_LAUNCH_CONFIG | VS_ACTION_LAUNCH_UNSHAPED => {
            launch::enter(frame, row)
        }
        VS_ACTION_LAUNCH_LIST => launch::enter_list(frame),
        VS_ACTION_GRAPH_LAUNCH if !process::counts_activity() && !graph::needs_graph_record() => {
            PASS
        }
        _ => begin(frame, row),
    }
}

/// Handles the entry of a function of an allocator.
///
/// # Safety
///
/// As for [`enter`].
pub(crate) unsafe extern "C" fn enter_block(frame: *mut Frame) {
    // SAFETY: as in `enter`.
    let frame = unsafe { &mut *frame };
    frame.target = process::moved_entry(frame.hook);
    if process::is_running() || process::resume() {
        block::enter(frame, (frame.hook as usize).wrapping_sub(FIRST_BLOCK_FUNCTION));
    }
}

/// Counts a call of a function that the hook table does not have, as in `unknown.h`.
fn count_unknown(function: u64) {
    let Some(area) = process::area() else { return };
    let index = (function as usize).wrapping_sub(VS_MAX_HOOKS);
    if let Some(function) = area.header.unknown.get(index) {
        function.calls.fetch_add(1, Ordering::Relaxed);
    }
}

fn begin(frame: &mut Frame, row: &Row) -> u32 {
    let action = u32::from(row.hook.action);
    let Some(thread) = thread::own() else {
        thread::call_dropped();
        loss::count_dropped(frame, &row.hook);
        return PASS;
    };
    // Some frameworks set the same context over and over: nothing changes, whatever the driver
    // returns.
    if action == VS_ACTION_CONTEXT_SET
        && thread.is_context_known()
        && thread.context() == frame.args[0]
    {
        return PASS;
    }
    let sp = frame.sp();
    // Remove calls that were left without returning (longjmp, exceptions): their stack pointers are
    // below the current one.
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
        loss::count_dropped(frame, &row.hook);
        return PASS;
    }
    thread.calls[level % VS_INFLIGHT] = InflightCall { sp, hook: frame.hook };
    thread.inflight = level as u32 + 1;
    frame.level = level as u64;
    frame.set_stack_words(row.stack_words);
    frame.entered = emit::now();
    RETURN
}

/// Returns whether a call is an implementation detail of the hooked call around it, which alone
/// counts. Calls inside context calls do count; calls that create or destroy an object only hide
/// inner calls that do so too.
fn is_nested(thread: &ThreadState, inner: &WireHook) -> bool {
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

/// Handles the return of a call.
///
/// # Safety
///
/// `frame` is the wrapper's, with the result of the function.
pub(crate) unsafe extern "C" fn leave(frame: *mut Frame) {
    // SAFETY: as in `enter`.
    let frame = unsafe { &mut *frame };
    // The call forked: the child has no state of it.
    if !process::is_running() {
        return;
    }
    let Some(row) = process::row(frame.hook) else { return };
    let result = frame.result as i32;
    if matches!(
        u32::from(row.hook.action),
        VS_ACTION_LAUNCH | VS_ACTION_LAUNCH_CONFIG | VS_ACTION_LAUNCH_UNSHAPED
    ) {
        launch::leave(frame, row, result);
        return;
    }
    let Some(thread) = thread::existing() else { return };
    thread.inflight = frame.level as u32;
    if is_nested(thread, &row.hook) {
        return;
    }
    end(frame, thread, &row.hook, result);
}

fn end(frame: &Frame, thread: &mut ThreadState, hook: &WireHook, result: i32) {
    let action = u32::from(hook.action);
    if process::counts_activity() && end_activity(frame, thread, hook, result) {
        return;
    }
    let mut out = 0;
    if matches!(action, VS_ACTION_RECORD | VS_ACTION_CONTEXT_CREATE | VS_ACTION_CONTEXT_DESTROY)
        || action >= VS_ACTION_CAPTURE_BEGIN
    {
        graph::apply(hook, frame.args[0], result, thread.tid);
        let allocates = u32::from(hook.loss_class) == VS_CLASS_ALLOCATE;
        let has_stack = allocates || u32::from(hook.flags) & VS_WITH_STACK != 0;
        let stack = if has_stack { stack::capture(frame, thread) } else { StackRef::NONE };
        if allocates && !stack.is_known {
            // The caller may be an allocator whose library was just loaded.
            allocators::search();
        }
        out = record(frame, thread, hook, result, &stack);
    }
    if result == 0 {
        thread.apply_context(action, frame.args[0], out);
    }
}

/// Handles launches, copies and kernel names. Returns whether no record is needed.
fn end_activity(frame: &Frame, thread: &ThreadState, hook: &WireHook, result: i32) -> bool {
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

/// Writes the record of a call. Returns its first out value.
fn record(
    frame: &Frame,
    thread: &ThreadState,
    hook: &WireHook,
    result: i32,
    stack: &StackRef,
) -> u64 {
    let mut flags = stack.flags;
    let mut outs = [0; 2];
    if result == 0 {
        for (index, value) in outs.iter_mut().enumerate() {
            *value = loss::read_out(frame, hook, index).unwrap_or(0);
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
        stack: stack.stack,
        python: stack.python,
    };
    let written = if has_descriptor {
        emit::write(&with_descriptor(frame, hook, call))
    } else {
        emit::write(&call)
    };
    if !written {
        count_lost(frame, hook, result, outs[0]);
    }
    outs[0]
}

/// Size of the smallest page.
const PAGE: usize = 4096;

fn count_lost(frame: &Frame, hook: &WireHook, result: i32, out: u64) {
    if result != 0 {
        loss::count_call(hook, 0, result);
        return;
    }
    let bytes = loss::bytes(frame, hook, true);
    if !loss::has_no_effect(frame, hook, bytes, out) {
        loss::count_call(hook, bytes, 0);
    }
}

/// Adds the structure that the program passed to the driver. It is read only if the driver accepted
/// it: a call that failed for another reason may have had an invalid pointer.
fn with_descriptor(frame: &Frame, hook: &WireHook, mut call: Call) -> CallDescriptor {
    let mut descriptor = [0_u8; VS_DESCRIPTOR];
    let is_data = u32::from(hook.flags) & VS_DATA != 0;
    let mut from = descriptor_address(frame, hook);
    if is_data && call.head.result == 0 {
        from = unwrap_fat_binary(from);
    }
    let mut bytes = usize::from(hook.descriptor_bytes).min(VS_DESCRIPTOR);
    if is_data {
        // It may end in the page that it begins in.
        bytes = bytes.min(PAGE - from as usize % PAGE);
    }
    if from != 0 && matches!(call.head.result, 0 | OUT_OF_MEMORY) {
        // SAFETY: the driver read at least these bytes of the structure in this call; of data, a part
        // of this page.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, descriptor.as_mut_ptr(), bytes);
        }
    } else if !is_data {
        call.flags |= VS_OUT_UNREADABLE;
    }
    CallDescriptor { call, descriptor }
}

/// Returns the address of the structure that the program passed; 0 if it passed none.
fn descriptor_address(frame: &Frame, hook: &WireHook) -> u64 {
    let flags = u32::from(hook.flags);
    if flags & VS_BY_VALUE != 0 {
        return frame.memory_argument(hook.descriptor_argument);
    }
    // A file descriptor is not a pointer.
    let is_pointer = flags & VS_FILE == 0 || frame.args[2] as u32 == VS_FABRIC;
    if is_pointer { frame.argument(hook.descriptor_argument) } else { 0 }
}

/// Returns the address of an image that the driver loaded; of the fat binary, if the runtime passed it
/// in a wrapper.
fn unwrap_fat_binary(image: u64) -> u64 {
    if image == 0 || !image.is_multiple_of(8) {
        return image;
    }
    // SAFETY: the driver read the first words of the image to find its type, and the pointer of a wrapper
    // to load what it points to. All are aligned.
    unsafe {
        let word = |at: u64| *((image + at) as *const u32);
        if word(0) == VS_FATBIN_WRAPPER && word(4) == VS_FATBIN_WRAPPER_VERSION {
            *((image + u64::from(VS_FATBIN_WRAPPER_DATA)) as *const u64)
        } else {
            image
        }
    }
}
