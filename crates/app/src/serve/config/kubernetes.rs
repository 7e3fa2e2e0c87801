//! `[kubernetes]`: where names of pods come from.

use serde::Deserialize;

/// `[kubernetes]`: where names of pods come from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Kubernetes {}

impl Kubernetes {
    /// What is wrong with it.
    #[expect(clippy::unused_self, reason = "nothing to check yet")]
    pub(super) fn check(&self, _wrong: &mut Vec<String>) {}
}
