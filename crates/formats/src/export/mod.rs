//! Snapshots and reports → bytes. Nobody else formats for users.

pub mod json;
pub mod text;

use engine::ids::FunctionId;

use crate::WallClock;

/// What a report needs besides the snapshot: the names of things the engine knows by number.
#[derive(Clone, Debug)]
pub struct Names {
    /// Times of day.
    pub clock: WallClock,
    /// The driver function of a row of the hook table.
    pub function: fn(FunctionId) -> &'static str,
}
