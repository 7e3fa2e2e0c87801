//! The table of hooked driver functions. To support another function is to add its row here and,
//! where its meaning is new, a case in [`crate::decode`]; nothing else changes.

use engine::ids::Space;
use engine::kind::Kind;

use crate::wire;

/// Where a call says how many bytes it gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// An argument.
    Argument(u8),
    /// The pitch that the driver chose (an out value of argument 1) times the height.
    Pitch {
        /// The argument with the width in bytes, for calls that failed.
        width: u8,
        /// The argument with the height.
        height: u8,
    },
}

/// Where a call says which memory it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// Behind the pointer in argument 0, at return.
    Out,
    /// Argument 0 itself.
    Argument,
}

/// What a successful call of a function means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Memory begins.
    Allocate {
        /// Its sort.
        kind: Kind,
        /// Where its name is.
        pointer: Pointer,
        /// Where its size is.
        size: Size,
    },
    /// The memory named by argument 0 ends.
    Free {
        /// What argument 0 is.
        space: Space,
    },
    /// Argument 0 replaces the thread's current context.
    ContextSet,
    /// Argument 0 is pushed.
    ContextPush,
    /// The thread's current context is popped.
    ContextPop,
    /// The thread's current context is told.
    ContextGet,
    /// The device of a context is told.
    ContextDevice {
        /// The argument that names the context; without one it is the current context.
        context: Option<u8>,
    },
    /// A context begins and is pushed.
    ContextCreate {
        /// The argument with the device.
        device: u8,
    },
    /// The context in argument 0 ends with everything in it.
    ContextDestroy,
    /// The primary context of the device in argument 1 has one user more.
    PrimaryRetain,
    /// The primary context of the device in argument 0 has one user less.
    PrimaryRelease,
    /// The primary context of the device in argument 0 ends with everything in it.
    PrimaryReset,
}

/// A hooked function.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// The exported name.
    pub symbol: &'static str,
    /// What it means.
    pub meaning: Meaning,
}

const fn hook(symbol: &'static str, meaning: Meaning) -> Hook {
    Hook { symbol, meaning }
}

const fn allocate(symbol: &'static str, kind: Kind, pointer: Pointer, size: Size) -> Hook {
    hook(symbol, Meaning::Allocate { kind, pointer, size })
}

const fn free(symbol: &'static str) -> Hook {
    hook(symbol, Meaning::Free { space: Space::Address })
}

/// Every hooked function. A row's position is its cookie and its [`engine::ids::FunctionId`].
pub const HOOKS: &[Hook] = &[
    allocate("cuMemAlloc_v2", Kind::Device, Pointer::Out, Size::Argument(1)),
    allocate("cuMemAllocPitch_v2", Kind::Device, Pointer::Out, Size::Pitch { width: 2, height: 3 }),
    allocate("cuMemAllocManaged", Kind::Managed, Pointer::Out, Size::Argument(1)),
    allocate("cuMemAllocHost_v2", Kind::Pinned, Pointer::Out, Size::Argument(1)),
    allocate("cuMemHostAlloc", Kind::Pinned, Pointer::Out, Size::Argument(1)),
    allocate("cuMemHostRegister_v2", Kind::Registered, Pointer::Argument, Size::Argument(1)),
    free("cuMemFree_v2"),
    free("cuMemFreeHost"),
    free("cuMemHostUnregister"),
    hook("cuCtxCreate_v2", Meaning::ContextCreate { device: 2 }),
    hook("cuCtxCreate_v3", Meaning::ContextCreate { device: 4 }),
    hook("cuCtxCreate_v4", Meaning::ContextCreate { device: 3 }),
    hook("cuCtxDestroy_v2", Meaning::ContextDestroy),
    hook("cuCtxDestroy", Meaning::ContextDestroy),
    hook("cuCtxSetCurrent", Meaning::ContextSet),
    hook("cuCtxPushCurrent_v2", Meaning::ContextPush),
    hook("cuCtxPushCurrent", Meaning::ContextPush),
    hook("cuCtxPopCurrent_v2", Meaning::ContextPop),
    hook("cuCtxPopCurrent", Meaning::ContextPop),
    hook("cuCtxGetCurrent", Meaning::ContextGet),
    hook("cuCtxGetDevice", Meaning::ContextDevice { context: None }),
    hook("cuCtxGetDevice_v2", Meaning::ContextDevice { context: Some(1) }),
    hook("cuDevicePrimaryCtxRetain", Meaning::PrimaryRetain),
    hook("cuDevicePrimaryCtxRelease_v2", Meaning::PrimaryRelease),
    hook("cuDevicePrimaryCtxRelease", Meaning::PrimaryRelease),
    hook("cuDevicePrimaryCtxReset_v2", Meaning::PrimaryReset),
    hook("cuDevicePrimaryCtxReset", Meaning::PrimaryReset),
];

const _: () = assert!(HOOKS.len() <= wire::VS_MAX_HOOKS);

/// The name of a driver function by its row.
#[must_use]
pub fn function_name(function: engine::ids::FunctionId) -> &'static str {
    HOOKS.get(usize::from(function.0)).map_or("an unknown function", |hook| hook.symbol)
}

const NONE: u8 = wire::VS_NONE as u8;

impl Hook {
    /// The row as the probes need it.
    pub(crate) const fn wire(&self) -> wire::WireHook {
        let mut row = wire::WireHook {
            action: wire::VS_ACTION_RECORD as u8,
            loss_class: wire::VS_CLASS_OTHER as u8,
            size_argument: NONE,
            size_factor: NONE,
            out_argument: [NONE, NONE],
            out_bytes: [8, 8],
            descriptor_argument: NONE,
            descriptor_bytes: 0,
            reserved: [0; 2],
        };
        match self.meaning {
            Meaning::Allocate { pointer, size, .. } => {
                row.loss_class = wire::VS_CLASS_ALLOCATE as u8;
                if matches!(pointer, Pointer::Out) {
                    row.out_argument[0] = 0;
                }
                match size {
                    Size::Argument(index) => row.size_argument = index,
                    Size::Pitch { width, height } => {
                        row.out_argument[1] = 1;
                        row.size_argument = width;
                        row.size_factor = height;
                    }
                }
            }
            Meaning::Free { .. } => row.loss_class = wire::VS_CLASS_FREE as u8,
            Meaning::ContextSet => row.action = wire::VS_ACTION_CONTEXT_SET as u8,
            Meaning::ContextPush => row.action = wire::VS_ACTION_CONTEXT_PUSH as u8,
            Meaning::ContextPop => row.action = wire::VS_ACTION_CONTEXT_POP as u8,
            Meaning::ContextGet => {
                row.action = wire::VS_ACTION_CONTEXT_GET as u8;
                row.out_argument[0] = 0;
            }
            Meaning::ContextDevice { context } => {
                row.action = wire::VS_ACTION_CONTEXT_DEVICE as u8;
                row.out_argument[0] = 0;
                row.out_bytes[0] = 4;
                if let Some(index) = context {
                    row.descriptor_argument = index;
                }
            }
            Meaning::ContextCreate { .. } => {
                row.action = wire::VS_ACTION_CONTEXT_CREATE as u8;
                row.out_argument[0] = 0;
            }
            Meaning::ContextDestroy => row.action = wire::VS_ACTION_CONTEXT_DESTROY as u8,
            Meaning::PrimaryRetain => row.out_argument[0] = 0,
            Meaning::PrimaryRelease | Meaning::PrimaryReset => {}
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::HOOKS;

    #[test]
    fn no_function_has_two_rows() {
        let names: HashSet<_> = HOOKS.iter().map(|hook| hook.symbol).collect();
        assert_eq!(names.len(), HOOKS.len());
    }
}
