//! The context stack of each thread, as in `context.h`.
//!
//! The driver's stack has no limit. The topmost levels and the depth are kept. Pops below the kept
//! levels make the context unknown until the thread sets or pushes one, or has popped everything.

use super::thread::ThreadState;
use crate::wire::{
    VS_ACTION_CONTEXT_CREATE, VS_ACTION_CONTEXT_DESTROY, VS_ACTION_CONTEXT_POP,
    VS_ACTION_CONTEXT_PUSH, VS_ACTION_CONTEXT_SET, VS_CONTEXTS,
};

const MASK: usize = VS_CONTEXTS - 1;

impl ThreadState {
    /// Returns whether the current context is known; it may be none.
    pub(crate) const fn is_context_known(&self) -> bool {
        self.known > 0 || (self.depth == 0 && self.from_empty)
    }

    /// Returns the current context; 0 if none is set or it is unknown.
    pub(crate) const fn context(&self) -> u64 {
        if self.known == 0 {
            return 0;
        }
        self.contexts[self.depth.wrapping_sub(1) as usize & MASK]
    }

    fn push(&mut self, context: u64) {
        self.contexts[self.depth as usize & MASK] = context;
        self.depth = self.depth.wrapping_add(1);
        self.known = (self.known + 1).min(VS_CONTEXTS as u32);
    }

    const fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.known = self.known.saturating_sub(1);
    }

    /// Makes the stack unknown, after a change that was not seen.
    pub(crate) const fn set_contexts_unknown(&mut self) {
        (self.depth, self.known, self.from_empty) = (0, 0, false);
    }

    /// `cuCtxSetCurrent` replaces the top, or pushes onto an empty stack; with null it pops.
    fn set(&mut self, context: u64) {
        if self.is_context_known() && self.context() == context {
            return;
        }
        self.pop();
        if context != 0 {
            self.push(context);
        }
    }

    /// A destroyed context is popped if it is the current one; other levels keep it.
    const fn destroy(&mut self, context: u64) {
        if !self.is_context_known() {
            self.set_contexts_unknown();
        } else if self.context() == context {
            self.pop();
        }
    }

    /// Applies a successful call. `out`: its first out value.
    pub(crate) fn apply_context(&mut self, action: u32, argument: u64, out: u64) {
        match action {
            VS_ACTION_CONTEXT_SET => self.set(argument),
            VS_ACTION_CONTEXT_PUSH => self.push(argument),
            VS_ACTION_CONTEXT_POP => self.pop(),
            VS_ACTION_CONTEXT_CREATE if out != 0 => self.push(out),
            // The new context could not be read.
            VS_ACTION_CONTEXT_CREATE => self.set_contexts_unknown(),
            VS_ACTION_CONTEXT_DESTROY => self.destroy(argument),
            _ => {}
        }
    }
}
