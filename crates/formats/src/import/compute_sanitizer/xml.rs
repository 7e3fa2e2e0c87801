//! XML reports, with a minimal parser: they contain only elements and text. Entities stand for one
//! character each; documents that declare others are rejected.

use std::io::BufRead;
use std::path::Path;

use super::leak::{LeakCollector, LeakKind, ReportFrame, ReportedLeak};
use crate::import::ImportError;

/// Maximum length of a text or tag.
const MAX_TEXT_BYTES: usize = 1 << 14;

/// Maximum nesting of elements.
const MAX_DEPTH: usize = 32;

/// A token of a document.
#[derive(PartialEq, Eq, Debug)]
enum XmlToken {
    Begin(String),
    End,
    Text(String),
}

/// Reads a report element by element.
pub(super) fn read(
    path: &Path,
    file: impl BufRead,
    leaks: &mut LeakCollector<'_>,
) -> Result<(), ImportError> {
    let mut tokens = XmlTokens { path, file, offset: 0, tag_follows: false, also_end: false };
    let mut record = LeakRecord::default();
    let mut inside: Vec<String> = Vec::new();
    while let Some(token) = tokens.next()? {
        match token {
            XmlToken::Begin(name) => {
                if inside.len() >= MAX_DEPTH {
                    return Err(tokens.broken("elements are nested too deeply"));
                }
                record.begin(&name);
                inside.push(name);
            }
            XmlToken::Text(text) => record.text(inside.last().map_or("", |name| name), text),
            XmlToken::End => match inside.pop().as_deref() {
                Some("frame") => record.leak.push(std::mem::take(&mut record.frame)),
                Some("record") => std::mem::take(&mut record).finish(leaks),
                Some(_) => {}
                None => return Err(tokens.broken("unmatched end tag")),
            },
        }
    }
    leaks.truncated |= !inside.is_empty();
    Ok(())
}

/// The record that is being read.
#[derive(Default)]
struct LeakRecord {
    kind: String,
    address: Option<u64>,
    bytes: Option<u64>,
    leak: ReportedLeak,
    frame: ReportFrame,
    /// Whether the stack is not the allocation's: others are of frees and launches.
    other_stack: bool,
}

impl LeakRecord {
    fn begin(&mut self, name: &str) {
        match name {
            "record" => *self = Self::default(),
            "frame" => self.frame = ReportFrame::default(),
            _ => {}
        }
    }

    fn text(&mut self, element: &str, text: String) {
        match element {
            "kind" => self.kind = text,
            "address" | "handle" => self.address = number(&text),
            "size" => self.bytes = number(&text),
            "text" | "type" => {
                let text = text.to_ascii_lowercase();
                if text.contains("array") {
                    self.leak.kind = LeakKind::Array;
                } else if text.contains("heap") {
                    self.leak.kind = LeakKind::Heap;
                }
            }
            "saveLocation" => self.other_stack = !text.contains("allocation"),
            "func" => self.frame.function = text,
            "path" => self.frame.file = Some(text),
            "line" => self.frame.line = text.parse().unwrap_or(0),
            "module" => self.frame.module = Some(text),
            _ => {}
        }
    }

    fn finish(mut self, leaks: &mut LeakCollector<'_>) {
        match (self.kind.as_str(), self.address, self.bytes) {
            ("Leak", Some(address), Some(bytes)) => {
                (self.leak.address, self.leak.bytes) = (address, bytes);
                if self.other_stack {
                    self.leak.frames.clear();
                }
                leaks.report(self.leak);
            }
            ("Leak", ..) => leaks.unclear += 1,
            ("Api", ..) => leaks.api_errors += 1,
            _ => leaks.others += 1,
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.replace(',', "").parse().ok(),
    }
}

struct XmlTokens<'p, R> {
    path: &'p Path,
    file: R,
    offset: u64,
    /// Whether the bracket before a tag was already read.
    tag_follows: bool,
    /// Whether the last element was empty: it ends where it started.
    also_end: bool,
}

impl<R: BufRead> XmlTokens<'_, R> {
    fn next(&mut self) -> Result<Option<XmlToken>, ImportError> {
        if std::mem::take(&mut self.also_end) {
            return Ok(Some(XmlToken::End));
        }
        loop {
            let follows = std::mem::take(&mut self.tag_follows);
            let (text, tag) = if follows { (Vec::new(), true) } else { self.until(b'<')? };
            let text = text.trim_ascii();
            if !text.is_empty() {
                self.tag_follows = tag;
                return Ok(Some(XmlToken::Text(characters(&String::from_utf8_lossy(text)))));
            }
            if !tag {
                return Ok(None);
            }
            if let Some(token) = self.tag()? {
                return Ok(Some(token));
            }
        }
    }

    /// Reads the tag after a bracket; `None` if it is not an element.
    fn tag(&mut self) -> Result<Option<XmlToken>, ImportError> {
        let (tag, complete) = self.until(b'>')?;
        if !complete {
            return Ok(None);
        }
        let tag = String::from_utf8_lossy(&tag).into_owned();
        if tag.starts_with("!DOCTYPE") || tag.starts_with("!ENTITY") {
            return Err(self.broken("the document declares a type, which no report does"));
        }
        if tag.starts_with("!--") {
            let mut end = tag;
            while !end.ends_with("--") {
                let (more, complete) = self.until(b'>')?;
                if !complete {
                    return Ok(None);
                }
                end = String::from_utf8_lossy(&more).into_owned();
            }
            return Ok(None);
        }
        if tag.starts_with('?') || tag.starts_with('!') {
            return Ok(None);
        }
        if tag.starts_with('/') {
            return Ok(Some(XmlToken::End));
        }
        self.also_end = tag.ends_with('/');
        let name = tag.trim_end_matches('/').split_whitespace().next().unwrap_or_default();
        Ok(Some(XmlToken::Begin(name.into())))
    }

    /// Reads the bytes up to and including a mark; returns whether the mark was found. Long texts
    /// are truncated.
    fn until(&mut self, mark: u8) -> Result<(Vec<u8>, bool), ImportError> {
        let mut bytes = Vec::new();
        loop {
            let part = self
                .file
                .fill_buf()
                .map_err(|source| ImportError::Io { path: self.path.into(), source })?;
            if part.is_empty() {
                return Ok((bytes, false));
            }
            let end = part.iter().position(|&byte| byte == mark);
            let found = part.get(..end.unwrap_or(part.len())).unwrap_or_default();
            let room = MAX_TEXT_BYTES.saturating_sub(bytes.len()).min(found.len());
            bytes.extend_from_slice(found.get(..room).unwrap_or_default());
            let used = found.len() + usize::from(end.is_some());
            self.file.consume(used);
            self.offset += used as u64;
            if end.is_some() {
                return Ok((bytes, true));
            }
        }
    }

    fn broken(&self, problem: &str) -> ImportError {
        ImportError::Broken {
            path: self.path.into(),
            problem: problem.into(),
            location: format!("byte {}", self.offset),
            advice: "save it again with compute-sanitizer --xml --save FILE".into(),
        }
    }
}

/// Replaces entities in a text: each stands for one character.
fn characters(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let known = after.split_once(';').and_then(|(name, rest_of_text)| {
            let c = match name {
                "lt" => '<',
                "gt" => '>',
                "amp" => '&',
                "quot" => '"',
                "apos" => '\'',
                _ => {
                    let digits = name.strip_prefix('#')?;
                    let code = match digits.strip_prefix('x') {
                        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                        None => digits.parse().ok()?,
                    };
                    char::from_u32(code)?
                }
            };
            Some((c, rest_of_text))
        });
        match known {
            Some((c, rest_of_text)) => {
                out.push(c);
                rest = rest_of_text;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_replaced_by_one_character_each() {
        assert_eq!(characters("a&lt;b&gt; &amp;lt; &#65;&#x42;"), "a<b> &lt; AB");
        assert_eq!(characters("&unknown; & &#xffffffff; &"), "&unknown; & &#xffffffff; &");
    }
}
