//! Processors that live tracing supports.

/// Returns the clang option that selects the registers of a processor, by its name in Rust.
pub(crate) fn define(arch: &str) -> Result<&'static str, String> {
    match arch {
        "x86_64" => Ok("-D__TARGET_ARCH_x86"),
        "aarch64" => Ok("-D__TARGET_ARCH_arm64"),
        other => Err(format!(
            "vramscope supports x86-64 and arm64, not {other}; copy recordings to such a machine \
             to analyze them"
        )),
    }
}
