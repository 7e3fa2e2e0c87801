//! Demangles names of functions.

use engine::demangle::{cpp, rust};

/// Maximum length of a name; longer ones are truncated.
const MAX_NAME_BYTES: usize = 16 << 10;

/// Suffixes that compilers add to clones and parts of a function.
const CLONE_SUFFIXES: [&str; 6] =
    [".isra.", ".part.", ".constprop.", ".cold", ".llvm.", ".lto_priv."];

/// Returns whether a symbol is mangled.
pub(super) fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

/// Demangles a symbol of Rust, C++ or any other language.
pub(super) fn demangle(symbol: &str) -> String {
    let end = CLONE_SUFFIXES.iter().filter_map(|part| symbol.find(part)).min();
    let symbol = end.and_then(|end| symbol.get(..end)).unwrap_or(symbol);
    if symbol.len() <= MAX_NAME_BYTES
        && let Some(name) = rust(symbol, MAX_NAME_BYTES).or_else(|| cpp(symbol, MAX_NAME_BYTES))
    {
        return name;
    }
    truncate(symbol).to_owned()
}

/// Truncates a name to the maximum length.
pub(super) fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_language_are_demangled() {
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
    fn demangled_size_is_bounded() {
        // Each pair consists of two of the previous pair.
        let mut bomb = String::from("_Z1f4pairIiiE");
        for level in 0..40 {
            let inner =
                if level == 0 { "S0_".to_owned() } else { format!("S{}_", level_digit(level)) };
            bomb.push_str(&format!("S_I{inner}{inner}E"));
        }
        assert!(demangle(&bomb).len() <= MAX_NAME_BYTES);
        assert_eq!(demangle(&"é".repeat(MAX_NAME_BYTES)).len(), MAX_NAME_BYTES);
    }

    /// Substitutions count in base 36.
    fn level_digit(level: u32) -> String {
        let digit = |value| char::from_digit(value, 36).unwrap().to_ascii_uppercase();
        if level < 36 { digit(level).to_string() } else { format!("1{}", digit(level - 36)) }
    }
}
