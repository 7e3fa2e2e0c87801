//! Processors that live tracing supports.

/// Clang options for a processor.
#[derive(Debug)]
pub(crate) struct Arch {
    /// Selects the registers that hold arguments.
    pub(crate) define: &'static str,
    /// The directory of the system's headers.
    pub(crate) triplet: &'static str,
}

/// Returns the options for a processor, by its name in Rust. Attach points are found by decoding
/// machine code (`prologue.rs`) and arguments are read from the stack (`launch.h`), both for x86-64
/// only.
pub(crate) fn supported(arch: &str) -> Result<Arch, String> {
    match arch {
        "x86_64" => Ok(Arch { define: "-D__TARGET_ARCH_x86", triplet: "x86_64-linux-gnu" }),
        other => Err(format!(
            "live tracing supports x86-64 only, not {other}; build with --no-default-features for \
             the verbs that read files"
        )),
    }
}
