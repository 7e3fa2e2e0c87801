//! Sanitizing of untrusted text: names of traced processes may contain escape sequences, line
//! breaks or bidirectional controls that would rewrite a terminal or hide in a label.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write;

use engine::metrics::label::is_invisible;

/// Maximum length of a text from outside.
const MAX_TEXT_CHARS: usize = 256;

/// Maximum length of a line of a message, and maximum number of lines.
const MAX_LINE_BYTES: usize = 8 << 10;
const MAX_LINES: usize = 200;

/// Maximum length of a kernel name: templates make them long.
pub const MAX_KERNEL_NAME_CHARS: usize = 1 << 18;

/// Returns `text` with invisible and control characters written as `\u{…}`, truncated to a default
/// length.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    sanitize_up_to(text, MAX_TEXT_CHARS)
}

/// Sanitizes a text like [`sanitize`], as an own string.
pub fn sanitized(text: &str) -> String {
    sanitize(text).into_owned()
}

/// Sanitizes a message for a terminal or a log. Everything but line breaks is escaped as in
/// [`sanitize`]. All lines but the first are indented, so that no text in a message can look like a
/// separate message.
pub fn message(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| sanitize_up_to(line, MAX_LINE_BYTES)).collect();
    let mut out = String::new();
    for (number, line) in lines.iter().take(MAX_LINES).enumerate() {
        if number > 0 {
            out.push_str(if line.starts_with("  ") { "\n" } else { "\n  " });
        }
        out.push_str(line);
    }
    out
}

/// Sanitizes a text like [`sanitize`], with another maximum length.
pub fn sanitize_up_to(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        if out.len() >= max {
            out.push('…');
            break;
        }
        if is_plain(c) {
            out.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
    }
    Cow::Owned(out)
}

/// Returns an error with its causes. Some errors already contain the text of their cause.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text
}

fn is_plain(c: char) -> bool {
    !c.is_control() && !is_invisible(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(sanitize("pt_autograd_0"), "pt_autograd_0");
        assert_eq!(sanitize("训练"), "训练");
        assert_eq!(sanitize("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(sanitize("a\nb\u{202e}c\u{9b}d"), "a\\u{a}b\\u{202e}c\\u{9b}d");
        assert!(sanitize(&"x".repeat(10_000)).len() < 300);
        assert!(sanitize(&"\x1b".repeat(10_000)).len() < 300);
    }

    #[test]
    fn message_lines_are_escaped_and_indented() {
        assert_eq!(message("vramscope: all is well"), "vramscope: all is well");
        assert_eq!(message("a\x1b[2J\u{9b}b\rc"), "a\\u{1b}[2J\\u{9b}b\\u{d}c");
        assert_eq!(message("one\ntwo\n  three\n"), "one\n  two\n  three");
        assert_eq!(message("name\r\nvramscope: forged"), "name\n  vramscope: forged");
        assert!(message(&"x".repeat(1 << 20)).len() < 9000);
        assert!(message(&"\n".repeat(1 << 20)).len() < 1000);
    }
}
