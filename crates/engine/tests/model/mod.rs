//! Two models to hold the ledger against: [`naive`] follows the same rules without any clever data
//! structure, [`world`] is a driver that knows what is really live.

pub(crate) mod naive;
pub(crate) mod world;
