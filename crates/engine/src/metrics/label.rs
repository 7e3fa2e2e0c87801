//! Label values: short, and without control or invisible characters.

/// Maximum length of a label value, in characters.
const MAX_LABEL_CHARS: usize = 120;

/// Converts untrusted text to a label value: replaces invisible characters by `?` and truncates.
pub fn label(text: &str) -> Box<str> {
    let plain = |c: char| if c.is_control() || is_invisible(c) { '?' } else { c };
    let mut out = String::with_capacity(text.len().min(MAX_LABEL_CHARS));
    let mut rest = text.chars();
    out.extend(rest.by_ref().take(MAX_LABEL_CHARS - 1).map(plain));
    // The last character is `…` if the text is longer.
    out.extend(rest.next().map(|last| if rest.next().is_some() { '…' } else { plain(last) }));
    out.into()
}

/// Characters that change the text direction, or have no width.
pub const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sanitized_and_truncated() {
        assert_eq!(&*label("python3"), "python3");
        assert_eq!(&*label("训练 \"a\\b\""), "训练 \"a\\b\"");
        assert_eq!(&*label("a\x1b[2J\nb\u{202e}c"), "a?[2J?b?c");
        let whole = "x".repeat(MAX_LABEL_CHARS);
        assert_eq!(*label(&whole), whole);
        let cut = label(&"é".repeat(5000));
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (MAX_LABEL_CHARS, true));
    }
}
