//! NEWMOD ledger/torch

pub(super) mod cache;
pub(super) mod segments;
