//! Names of kernels for people, made from the names that the driver knows.

mod fold;

use engine::demangle::{cpp, rust};

/// Names that are longer are left as they are.
const MOST_MANGLED: usize = 64 << 10;
/// A name that becomes longer than this is left as it is: substitutions can make a short name explode.
const MOST_DEMANGLED: usize = 256 << 10;

/// What a kernel is called.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelName {
    /// For tables: without return type and parameters, template arguments folded to `…`. Where the
    /// name itself tells little (`vectorized_elementwise_kernel`), the argument that tells what is
    /// done stays. Hostile text.
    pub short: String,
    /// The whole demangled name; what is not mangled, or cannot be demangled, as it is. Hostile text.
    pub full: String,
}

impl KernelName {
    /// The name behind a symbol. Every text has one: names of compilers that do not mangle (Triton,
    /// XLA, CuPy) are themselves.
    #[must_use]
    pub fn of(symbol: &str) -> Self {
        if symbol.len() > MOST_MANGLED {
            return Self::plain(symbol);
        }
        if let Some(full) = rust(symbol, MOST_DEMANGLED) {
            return Self { short: fold::generics(&full), full };
        }
        if let Some(full) = cpp(symbol, MOST_DEMANGLED) {
            return Self { short: fold::short(&full), full };
        }
        // Other tools' files have names that are demangled already.
        if fold::is_function(symbol) {
            return Self { short: fold::short(symbol), full: symbol.to_owned() };
        }
        Self::plain(symbol)
    }

    fn plain(symbol: &str) -> Self {
        Self { short: symbol.to_owned(), full: symbol.to_owned() }
    }
}
