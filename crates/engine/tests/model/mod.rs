//! Two models to compare the ledger with: [`naive`] follows the same rules with plain data
//! structures, [`world`] is a driver that knows the actual live memory. [`steps`] generates events
//! for the naive model; [`tracked`] is the live set reconstructed from the ledger's changes.

pub(crate) mod naive;
pub(crate) mod steps;
pub(crate) mod tracked;
pub(crate) mod world;
