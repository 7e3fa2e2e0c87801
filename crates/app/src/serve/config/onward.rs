//! `[onward]`: whom to send figures to.

use serde::Deserialize;

/// `[onward]`: whom to send figures to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Onward {}

impl Onward {
    /// What is wrong with it.
    #[expect(clippy::unused_self, reason = "nothing to check yet")]
    pub(super) fn check(&self, _wrong: &mut Vec<String>) {}
}
