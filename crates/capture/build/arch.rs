//! Processors that live tracing supports.

/// Returns the clang option that selects the registers of a processor, by its name in Rust.
pub(crate) fn define(arch: &str) -> Result<&'static str, String> {
    match arch {
        "x86_64" => Ok("-D__TARGET_ARCH_x86"),
        "aarch64" => Ok("-D__TARGET_ARCH_arm64"),
        other => Err(format!(
            "live tracing supports x86-64 and arm64 only, not {other}; build with \
             --no-default-features for the verbs that read files"
        )),
    }
}
