//! Text from a traced process is hostile: names may hold escape sequences, line ends or bidirectional
//! controls that would rewrite a terminal or hide in a label.

use std::borrow::Cow;
use std::fmt::Write;

use engine::metrics::label::is_invisible;

/// The longest piece of foreign text that is shown.
const LONGEST: usize = 256;

/// The longest line of a message, and the most lines.
const LONGEST_LINE: usize = 8 << 10;
const MOST_LINES: usize = 200;

/// The longest name of a kernel: they are made of templates.
pub const LONGEST_KERNEL: usize = 1 << 18;

/// `text` with everything that is not plainly visible written as `\u{…}`, and cut to a sane length.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    plain_up_to(text, LONGEST)
}

/// A message for a terminal or a log. Everything but line ends is escaped as in [`plain`]. Every further line is
/// indented, so that no text in a message can pose as a message of its own.
#[must_use]
pub fn message(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| plain_up_to(line, LONGEST_LINE)).collect();
    let mut out = String::new();
    for (number, line) in lines.iter().take(MOST_LINES).enumerate() {
        if number > 0 {
            out.push_str(if line.starts_with("  ") { "\n" } else { "\n  " });
        }
        out.push_str(line);
    }
    out
}

/// The same with another length, for what is long by nature.
#[must_use]
pub fn plain_up_to(text: &str, longest: usize) -> Cow<'_, str> {
    if text.len() <= longest && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        if out.len() >= longest {
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

fn is_plain(c: char) -> bool {
    !c.is_control() && !is_invisible(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        assert_eq!(plain("pt_autograd_0"), "pt_autograd_0");
        assert_eq!(plain("训练"), "训练");
        assert_eq!(plain("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(plain("a\nb\u{202e}c\u{9b}d"), "a\\u{a}b\\u{202e}c\\u{9b}d");
        assert!(plain(&"x".repeat(10_000)).len() < 300);
        assert!(plain(&"\x1b".repeat(10_000)).len() < 300);
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
