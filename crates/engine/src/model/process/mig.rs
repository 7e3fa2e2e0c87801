//! MIG instances: parts of a GPU that are devices of their own for CUDA.

/// A MIG instance.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct MigInstance {
    /// `MIG-…`; untrusted.
    pub uuid: Box<str>,
    /// Profile, such as `1g.10gb`; empty if unknown; untrusted.
    pub profile: Box<str>,
}

impl MigInstance {
    /// Creates an instance from its UUID and the name of its device, which ends with the profile.
    pub fn new(uuid: &str, name: &str) -> Self {
        let profile = name.rsplit_once("MIG ").map_or("", |(_, profile)| profile.trim());
        Self { uuid: uuid.into(), profile: profile.into() }
    }
}
