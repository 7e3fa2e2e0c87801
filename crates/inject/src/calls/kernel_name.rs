//! Kernel names, from calls that pass or return them, as in `kernel_name.h`.

use super::thread::ThreadState;
use super::{emit, launch, loss};
use crate::process;
use crate::wire::{
    KernelName, VS_ACTION_NAME, VS_CLASS_OTHER, VS_LONG_NAME, VS_NAME_TRUNCATED, WireHook,
};
use crate::wrapper::Frame;

/// Records the name that a successful call passed or returned.
pub(crate) fn record(frame: &Frame, thread: &ThreadState, hook: &WireHook) {
    let Some(out) = loss::read_out(frame, hook, 0).filter(|out| *out != 0) else { return };
    let (kernel, text) = if u32::from(hook.action) == VS_ACTION_NAME {
        (out, frame.argument(hook.size_argument))
    } else {
        (frame.args[1], out)
    };
    if text == 0 {
        return;
    }
    let max = VS_LONG_NAME - 1;
    // SAFETY: the driver read or returned the string in this call.
    let length = unsafe { libc::strnlen(text as *const libc::c_char, max) };
    let Some(area) = process::area() else { return };
    let bytes = size_of::<KernelName>() + length;
    let Some(reserved) = emit::reserve(&area.header.records, area.records, bytes) else {
        return loss::count(VS_CLASS_OTHER, 0, 0);
    };
    let mut head = emit::head(crate::wire::VS_KERNEL_NAME, thread.tid);
    (head.hook, head.result) = (frame.hook as u16, (area.header.number as u16).into());
    let [calls, captured, checked, failed] = launch::counts(kernel);
    let named = KernelName {
        head,
        kernel,
        text,
        length: length as u32,
        flags: if length == max { VS_NAME_TRUNCATED } else { 0 },
        calls,
        captured,
        checked,
        failed,
        start: area.header.start,
    };
    // SAFETY: the reservation has room for the structure and the name after it.
    unsafe {
        reserved.data().cast::<KernelName>().write(named);
        let to = reserved.data().add(size_of::<KernelName>());
        std::ptr::copy_nonoverlapping(text as *const u8, to, length);
    }
    reserved.complete();
}
