//! Names of shared memory.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use engine::model::ids::ShareId;

/// Keeps handles and addresses of the kernel out of recordings: the names differ with each trace.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the name of memory that is exported by the bytes of a handle; `None` if there are none.
pub(super) fn of_bytes(handle: &[u8]) -> Option<ShareId> {
    let is_set = handle.iter().any(|byte| *byte != 0);
    is_set.then(|| ShareId(KEYS.hash_one(handle)))
}

/// Returns the name of memory that is exported by an open file; `None` if it is not known.
pub(super) fn of_file(file: u64) -> Option<ShareId> {
    (file != 0).then(|| ShareId(KEYS.hash_one(file)))
}
