//! Demangles names of functions.

use engine::demangle::{cpp, rust};

/// Maximum length of a name; longer ones are truncated.
const MOST: usize = 16 << 10;

/// Suffixes that compilers add to clones and parts of a function.
const PARTS: [&str; 6] = [".isra.", ".part.", ".constprop.", ".cold", ".llvm.", ".lto_priv."];

/// Returns whether a symbol is mangled.
pub(super) fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

/// Demangles a symbol of Rust, C++ or any other language.
pub(super) fn demangle(symbol: &str) -> String {
    let end = PARTS.iter().filter_map(|part| symbol.find(part)).min();
    let symbol = end.and_then(|end| symbol.get(..end)).unwrap_or(symbol);
    if symbol.len() <= MOST
        && let Some(name) = rust(symbol, MOST).or_else(|| cpp(symbol, MOST))
    {
        return name;
    }
    truncate(symbol).to_owned()
}

/// Truncates a name to the maximum length.
pub(super) fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST)]
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
        assert!(demangle(&bomb).len() <= MOST);
        assert_eq!(demangle(&"é".repeat(MOST)).len(), MOST);
    }

    /// Substitutions count in base 36.
    fn level_digit(level: u32) -> String {
        let digit = |value| char::from_digit(value, 36).unwrap().to_ascii_uppercase();
        if level < 36 { digit(level).to_string() } else { format!("1{}", digit(level - 36)) }
    }
}
