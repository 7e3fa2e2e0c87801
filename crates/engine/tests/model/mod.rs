//! Two models to hold the ledger against: [`naive`] follows the same rules without any clever data
//! structure, [`world`] is a driver that knows what is really live. [`steps`] are events to feed the
//! first one with; [`followed`] is the set that the ledger's changes give.

pub(crate) mod followed;
pub(crate) mod naive;
pub(crate) mod steps;
pub(crate) mod world;
