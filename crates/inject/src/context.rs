//! The context stack of each thread, by the rules of `context.h`.
//!
//! The driver's stack has no limit. The levels at the top are kept, and the number of all levels:
//! pops below the kept levels make the context unknown until the thread sets or pushes one.

use crate::thread::Thread;
use crate::wire::{
    VS_ACTION_CONTEXT_CREATE, VS_ACTION_CONTEXT_DESTROY, VS_ACTION_CONTEXT_POP,
    VS_ACTION_CONTEXT_PUSH, VS_ACTION_CONTEXT_SET, VS_CONTEXTS,
};

const MASK: usize = VS_CONTEXTS - 1;

impl Thread {
    pub(crate) const fn is_context_known(&self) -> bool {
        self.known > 0 || (self.depth == 0 && self.from_empty)
    }

    /// The current context; 0 where there is none, or where it is not known.
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

    /// Something happened to the stack that was not seen.
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

    /// A destroyed context is popped where it is the current one. Other levels keep it.
    const fn destroy(&mut self, context: u64) {
        if !self.is_context_known() {
            self.set_contexts_unknown();
        } else if self.context() == context {
            self.pop();
        }
    }

    /// Follows a successful call. `out`: its first out value.
    pub(crate) fn apply_context(&mut self, action: u32, argument: u64, out: u64) {
        match action {
            VS_ACTION_CONTEXT_SET => self.set(argument),
            VS_ACTION_CONTEXT_PUSH => self.push(argument),
            VS_ACTION_CONTEXT_POP => self.pop(),
            VS_ACTION_CONTEXT_CREATE if out != 0 => self.push(out),
            VS_ACTION_CONTEXT_CREATE => self.set_contexts_unknown(),
            VS_ACTION_CONTEXT_DESTROY => self.destroy(argument),
            _ => {}
        }
    }
}
