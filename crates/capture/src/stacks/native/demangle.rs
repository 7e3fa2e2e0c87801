//! Names of functions as their authors wrote them.

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// Names that are longer are cut.
const MOST: usize = 16 << 10;
/// How deep a name may be nested.
const DEEPEST: u32 = 256;

/// What compilers add to the names of parts and variants of a function.
const PARTS: [&str; 6] = [".isra.", ".part.", ".constprop.", ".cold", ".llvm.", ".lto_priv."];

/// Whether a symbol tells more than a plain name does.
pub(super) fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

/// The name behind a symbol of Rust, C++ or anything else.
pub(super) fn demangle(symbol: &str) -> String {
    let end = PARTS.iter().filter_map(|part| symbol.find(part)).min();
    let symbol = end.and_then(|end| symbol.get(..end)).unwrap_or(symbol);
    if symbol.len() <= MOST
        && let Some(name) = rust(symbol).or_else(|| cpp(symbol))
    {
        return name;
    }
    cut(symbol).to_owned()
}

/// No more of a text than is kept.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST)]
}

/// The older of Rust's schemes looks like that of C++ but for a hash at the end.
fn rust(symbol: &str) -> Option<String> {
    let is_hashed = || {
        let (_, hash) = symbol.strip_suffix('E')?.rsplit_once("17h")?;
        Some(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    if !symbol.starts_with("_R") && is_hashed() != Some(true) {
        return None;
    }
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = Limited::default();
    std::fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.0)
}

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

/// A text that refuses to become too long: substitutions can make a short name explode.
#[derive(Default)]
struct Limited(String);

impl std::fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len().saturating_add(text.len()) > MOST {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_language_are_read() {
        for (symbol, name) in [
            ("main", "main"),
            ("_ZN2at6Tensor4stepEi", "at::Tensor::step(int)"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_ZL6hiddeni.isra.0.cold", "hidden(int)"),
            ("step.part.0", "step"),
            ("_Znonsense", "_Znonsense"),
        ] {
            assert_eq!(demangle(symbol), name);
        }
    }

    #[test]
    fn a_name_that_would_explode_stays_as_it_is() {
        // Each pair is made of two of the pair before it.
        let mut bomb = String::from("_Z1f4pairIiiE");
        for level in 0..40 {
            let inner =
                if level == 0 { "S0_".to_owned() } else { format!("S{}_", level_digit(level)) };
            bomb.push_str(&format!("S_I{inner}{inner}E"));
        }
        assert!(demangle(&bomb).len() <= MOST);
        assert_eq!(demangle(&"é".repeat(MOST)).len(), MOST);
    }

    /// Substitutions count in base 36.
    fn level_digit(level: u32) -> String {
        let digit = |value| char::from_digit(value, 36).unwrap().to_ascii_uppercase();
        if level < 36 { digit(level).to_string() } else { format!("1{}", digit(level - 36)) }
    }
}
