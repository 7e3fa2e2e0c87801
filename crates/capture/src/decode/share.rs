//! Calls that share memory between processes.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use engine::model::event::{EventKind, ShareCall};
use engine::model::ids::{AddressType, AllocationKey, ShareId};

use crate::hooks::{CallSemantics, SHARE_BYTES, ShareHandle, SizeSource};
use crate::wire::{self, Call};

/// Keeps handles and addresses of the kernel out of recordings: the names differ with each trace.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the export or import by a successful call.
pub(super) fn event(
    semantics: CallSemantics,
    call: &Call,
    descriptor: Option<&[u8; wire::VS_DESCRIPTOR]>,
) -> Option<EventKind> {
    if call.head.result != 0 || call.flags & wire::VS_OUT_UNREADABLE != 0 {
        return None;
    }
    let handle = descriptor?.get(..usize::from(SHARE_BYTES))?;
    let [_, memory, handle_type, ..] = call.args;
    let imported = |space, by| {
        let key = AllocationKey { space, value: call.outs[0] };
        Some(ShareCall::Imported { key, share: name(by, call, handle_type as u32, handle)? })
    };
    let share = match semantics {
        CallSemantics::Export { space, handle: by } => {
            let key = AllocationKey { space, value: memory };
            Some(ShareCall::Exported { key, share: name(by, call, handle_type as u32, handle)? })
        }
        CallSemantics::Allocate { space, size: SizeSource::Exporter(by), .. } => {
            imported(space, by)
        }
        CallSemantics::VmmImport => imported(AddressType::Handle, ShareHandle::Shareable),
        _ => None,
    };
    share.map(EventKind::Share)
}

/// Returns the name of the shared memory; `None` if the handle is not known.
fn name(by: ShareHandle, call: &Call, handle_type: u32, handle: &[u8]) -> Option<ShareId> {
    let hash = match (by, handle_type) {
        (ShareHandle::Shareable, wire::VS_POSIX_FILE) => {
            let file = call.outs[1];
            (file != 0).then(|| KEYS.hash_one(file))
        }
        (ShareHandle::Shareable, other) if other != wire::VS_FABRIC => None,
        _ => handle.iter().any(|byte| *byte != 0).then(|| KEYS.hash_one(handle)),
    };
    hash.map(ShareId)
}
