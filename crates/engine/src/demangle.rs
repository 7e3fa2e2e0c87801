//! Names of functions as their authors wrote them, within bounds: names of programs are hostile.

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// How deep a name may be nested. The deepest ones of frameworks come to some dozens.
const DEEPEST: u32 = 256;

/// A name that a Rust compiler mangled, without its hash; `None` for any other, and for one that
/// would become longer than `most`. The older of Rust's schemes looks like that of C++ but for a
/// hash at the end.
#[must_use]
pub fn rust(symbol: &str, most: usize) -> Option<String> {
    let is_hashed = || {
        let (_, hash) = symbol.strip_suffix('E')?.rsplit_once("17h")?;
        Some(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    if !symbol.starts_with("_R") && is_hashed() != Some(true) {
        return None;
    }
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = Limited { text: String::new(), most };
    std::fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.text)
}

/// A name that a C++ compiler mangled; `None` for any other, and for one that would become longer
/// than `most`.
#[must_use]
pub fn cpp(symbol: &str, most: usize) -> Option<String> {
    if !symbol.starts_with("_Z") {
        return None;
    }
    let parsing = ParseOptions::default().recursion_limit(DEEPEST);
    let symbol = BorrowedSymbol::new_with_options(symbol.as_bytes(), &parsing).ok()?;
    let printing = DemangleOptions::default().recursion_limit(DEEPEST);
    let mut text = Limited { text: String::new(), most };
    symbol.structured_demangle(&mut text, &printing).ok()?;
    Some(text.text)
}

/// A text that refuses to become too long: substitutions can make a short name explode.
struct Limited {
    text: String,
    most: usize,
}

impl std::fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.text.len().saturating_add(text.len()) > self.most {
            return Err(std::fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
