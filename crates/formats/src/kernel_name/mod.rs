//! Readable names of kernels, from the symbols of the driver.

mod shorten;

use engine::demangle::{cpp, rust};

/// Maximum length of a symbol; longer ones are kept unchanged.
const MAX_MANGLED_BYTES: usize = 64 << 10;
/// Maximum length of a demangled name; symbols that exceed it are kept unchanged, because
/// substitutions can make a short one explode.
const MAX_DEMANGLED_BYTES: usize = 256 << 10;

/// Name of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelName {
    /// Name for tables: without return type and parameters, with template arguments folded to `…`.
    /// If the name itself says little (`vectorized_elementwise_kernel`), the argument with the
    /// operation is kept. Not sanitized.
    pub short: String,
    /// Demangled name, or the symbol if it is not mangled or cannot be demangled. Not sanitized.
    pub full: String,
}

impl KernelName {
    /// Returns the name of a symbol. Symbols of compilers that do not mangle (Triton, XLA, CuPy)
    /// are names themselves.
    pub fn of(symbol: &str) -> Self {
        if symbol.len() > MAX_MANGLED_BYTES {
            return Self::plain(symbol);
        }
        if let Some(full) = rust(symbol, MAX_DEMANGLED_BYTES) {
            return Self { short: shorten::generics(&full), full };
        }
        if let Some(full) = cpp(symbol, MAX_DEMANGLED_BYTES) {
            return Self { short: shorten::short(&full), full };
        }
        // Names in other tools' files are already demangled.
        if shorten::is_function(symbol) {
            return Self { short: shorten::short(symbol), full: symbol.to_owned() };
        }
        Self::plain(symbol)
    }

    fn plain(symbol: &str) -> Self {
        Self { short: symbol.to_owned(), full: symbol.to_owned() }
    }
}
