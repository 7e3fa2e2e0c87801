//! `[alerts]`: built-in rules and what they do.

use serde::Deserialize;

/// `[alerts]`: built-in rules and what they do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Alerts {}

impl Alerts {
    /// What is wrong with it.
    #[expect(clippy::unused_self, reason = "nothing to check yet")]
    pub(super) fn check(&self, _wrong: &mut Vec<String>) {}
}
