//! `[incidents]`: snapshots of memory, and how many are kept.

use serde::Deserialize;

/// `[incidents]`: snapshots of memory, and how many are kept.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Incidents {}

impl Incidents {
    /// What is wrong with it.
    #[expect(clippy::unused_self, reason = "nothing to check yet")]
    pub(super) fn check(&self, _wrong: &mut Vec<String>) {}
}
