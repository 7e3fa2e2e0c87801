//! Names of kernels for people, made from the names that the driver knows.

mod fold;

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// Names that are longer are left as they are.
const MOST_MANGLED: usize = 64 << 10;
/// A name that becomes longer than this is left as it is: substitutions can make a short name explode.
const MOST_DEMANGLED: usize = 256 << 10;
/// How deep a name may be nested. The deepest ones of frameworks come to some dozens.
const DEEPEST: u32 = 256;

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
        if let Some(full) = rust(symbol) {
            return Self { short: fold::generics(&full), full };
        }
        if let Some(full) = cpp(symbol) {
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

/// A name that a Rust compiler mangled. Its older scheme looks like C++ but for a hash at the end.
fn rust(symbol: &str) -> Option<String> {
    let hashed = || {
        let (_, hash) = symbol.strip_suffix('E')?.rsplit_once("17h")?;
        (hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(())
    };
    if !symbol.starts_with("_R") {
        hashed()?;
    }
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = Limited::default();
    // The short form is without the hash.
    std::fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.0)
}

/// A name that a C++ compiler mangled.
fn cpp(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") {
        return None;
    }
    let parsing = ParseOptions::default().recursion_limit(DEEPEST);
    let symbol = BorrowedSymbol::new_with_options(symbol.as_bytes(), &parsing).ok()?;
    let printing = DemangleOptions::default().recursion_limit(DEEPEST);
    let mut text = Limited::default();
    symbol.structured_demangle(&mut text, &printing).ok()?;
    Some(text.0)
}

/// A text that refuses to become too long.
#[derive(Default)]
struct Limited(String);

impl std::fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len().saturating_add(text.len()) > MOST_DEMANGLED {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
