//! Processors that tracing works on.

/// How clang is called for a processor.
#[derive(Debug)]
pub(crate) struct Arch {
    /// Selects the registers that arguments are in.
    pub(crate) define: &'static str,
    /// The directory of the system's headers.
    pub(crate) triplet: &'static str,
}

/// The settings for a processor, by Rust's name of it. Where to attach is decided by decoding
/// machine code (`prologue.rs`), and arguments are read off the stack (`launch.h`), both as on x86-64.
pub(crate) fn supported(arch: &str) -> Result<Arch, String> {
    match arch {
        "x86_64" => Ok(Arch { define: "-D__TARGET_ARCH_x86", triplet: "x86_64-linux-gnu" }),
        other => Err(format!(
            "live tracing supports x86-64 only, not {other}; build with --no-default-features for \
             the verbs that read files"
        )),
    }
}
