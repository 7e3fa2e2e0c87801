//! `[actions]`: what may be done without asking; nothing, unless it is allowed here.

use serde::Deserialize;

/// `[actions]`: what may be done without asking; nothing, unless it is allowed here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Actions {}

impl Actions {
    /// What is wrong with it.
    #[expect(clippy::unused_self, reason = "nothing to check yet")]
    pub(super) fn check(&self, _wrong: &mut Vec<String>) {}
}
