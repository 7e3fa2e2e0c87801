//! Demangling of function names with limits on nesting and length: symbol names are untrusted.

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// Maximum nesting of a name. Frameworks have names with a few dozen levels.
const MAX_NESTING: u32 = 256;

/// Demangles a Rust symbol, without its hash. Returns `None` for other symbols, and if the result
/// would be longer than `max_len`. Rust's legacy scheme differs from that of C++ only by a hash at
/// the end.
pub fn rust(symbol: &str, max_len: usize) -> Option<String> {
    let is_hashed = || {
        let (_, hash) = symbol.strip_suffix('E')?.rsplit_once("17h")?;
        Some(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    if !symbol.starts_with("_R") && is_hashed() != Some(true) {
        return None;
    }
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = BoundedString { text: String::new(), max_len };
    std::fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.text)
}

/// Demangles a C++ symbol. Returns `None` for other symbols, and if the result would be longer than
/// `max_len`.
pub fn cpp(symbol: &str, max_len: usize) -> Option<String> {
    if !symbol.starts_with("_Z") {
        return None;
    }
    let parsing = ParseOptions::default().recursion_limit(MAX_NESTING);
    let symbol = BorrowedSymbol::new_with_options(symbol.as_bytes(), &parsing).ok()?;
    let printing = DemangleOptions::default().recursion_limit(MAX_NESTING);
    let mut text = BoundedString { text: String::new(), max_len };
    symbol.structured_demangle(&mut text, &printing).ok()?;
    Some(text.text)
}

/// A string with a length limit: substitutions can expand a short symbol enormously.
struct BoundedString {
    text: String,
    max_len: usize,
}

impl std::fmt::Write for BoundedString {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.text.len().saturating_add(text.len()) > self.max_len {
            return Err(std::fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
