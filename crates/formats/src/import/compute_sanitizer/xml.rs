//! XML reports: they contain only elements and text. Documents that declare entities are rejected.

use std::io::{self, BufRead, Read};
use std::path::Path;

use quick_xml::events::{BytesRef, Event};
use quick_xml::{Reader, escape};

use super::leak::{LeakCollector, LeakKind, ReportFrame, ReportedLeak};
use crate::import::ImportError;

/// Maximum length of a text or tag.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Maximum nesting of elements.
const MAX_DEPTH: usize = 32;

/// Reads a report element by element.
pub(super) fn read(
    path: &Path,
    file: impl BufRead,
    leaks: &mut LeakCollector<'_>,
) -> Result<(), ImportError> {
    let mut reader = Reader::from_reader(LimitedReader { file, left: 0 });
    reader.config_mut().expand_empty_elements = true;
    reader.config_mut().allow_dangling_amp = true;
    let (mut record, mut inside) = (LeakRecord::default(), Vec::new());
    let (mut text, mut buffer) = (String::new(), Vec::new());
    loop {
        buffer.clear();
        reader.get_mut().left = MAX_TEXT_BYTES;
        let event = match reader.read_event_into(&mut buffer) {
            Ok(Event::Eof) => break,
            // The file ends within a tag.
            Err(quick_xml::Error::Syntax(_)) => {
                leaks.truncated = true;
                break;
            }
            Ok(Event::DocType(_)) => {
                let problem = "the document declares a type, which no report does";
                return Err(broken(path, &reader, problem));
            }
            Ok(Event::Start(_)) if inside.len() >= MAX_DEPTH => {
                return Err(broken(path, &reader, "elements are nested too deeply"));
            }
            Ok(event) => event,
            Err(quick_xml::Error::Io(error)) => {
                let source = io::Error::new(error.kind(), error);
                return Err(ImportError::Io { path: path.into(), source });
            }
            Err(error) => return Err(broken(path, &reader, &error.to_string())),
        };
        if matches!(event, Event::Start(_) | Event::End(_)) {
            record.text(inside.last().map_or("", String::as_str), text.trim());
            text.clear();
        }
        match event {
            Event::Start(tag) => {
                let name = String::from_utf8_lossy(tag.name().0).into_owned();
                record.begin(&name);
                inside.push(name);
            }
            Event::End(_) => match inside.pop().as_deref() {
                Some("frame") => record.leak.push(std::mem::take(&mut record.frame)),
                Some("record") => std::mem::take(&mut record).finish(leaks),
                _ => {}
            },
            Event::Text(part) if text.len() < MAX_TEXT_BYTES => {
                text.push_str(&String::from_utf8_lossy(&part));
            }
            Event::GeneralRef(reference) if text.len() < MAX_TEXT_BYTES => {
                push_reference(&mut text, &reference);
            }
            _ => {}
        }
    }
    leaks.truncated |= !inside.is_empty();
    Ok(())
}

/// Adds the character that a reference stands for; unknown ones are kept as they are.
fn push_reference(text: &mut String, reference: &BytesRef<'_>) {
    let name = String::from_utf8_lossy(reference);
    match (reference.resolve_char_ref(), escape::resolve_xml_entity(&name)) {
        (Ok(Some(character)), _) => text.push(character),
        (_, Some(character)) => text.push_str(character),
        _ => text.extend(["&", &name, ";"]),
    }
}

fn broken<R>(path: &Path, reader: &Reader<R>, problem: &str) -> ImportError {
    ImportError::Broken {
        path: path.into(),
        problem: problem.into(),
        location: format!("byte {}", reader.buffer_position()),
        advice: "save it again with compute-sanitizer --xml --save FILE".into(),
    }
}

/// Reads a file in pieces of a limited length, because a text or tag is read as a whole.
struct LimitedReader<R> {
    file: R,
    /// Bytes that may still be read.
    left: usize,
}

impl<R: BufRead> Read for LimitedReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(bytes)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for LimitedReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let bytes = self.file.fill_buf()?;
        if self.left == 0 && !bytes.is_empty() {
            let problem = format!("a text or tag is longer than {MAX_TEXT_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
        }
        Ok(bytes.get(..self.left).unwrap_or(bytes))
    }

    fn consume(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        self.file.consume(bytes);
    }
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

    fn text(&mut self, element: &str, text: &str) {
        match element {
            _ if text.is_empty() => {}
            "kind" => self.kind = text.into(),
            "address" | "handle" => self.address = number(text),
            "size" => self.bytes = number(text),
            "text" | "type" => {
                let text = text.to_ascii_lowercase();
                if text.contains("array") {
                    self.leak.kind = LeakKind::Array;
                } else if text.contains("heap") {
                    self.leak.kind = LeakKind::Heap;
                }
            }
            "saveLocation" => self.other_stack = !text.contains("allocation"),
            "func" => self.frame.function = text.into(),
            "path" => self.frame.file = Some(text.into()),
            "line" => self.frame.line = text.parse().unwrap_or(0),
            "module" => self.frame.module = Some(text.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a document.
    fn text(document: &str) -> String {
        let (mut reader, mut text) = (Reader::from_str(document), String::new());
        reader.config_mut().allow_dangling_amp = true;
        loop {
            match reader.read_event().unwrap() {
                Event::Text(part) => text.push_str(&String::from_utf8_lossy(&part)),
                Event::GeneralRef(reference) => push_reference(&mut text, &reference),
                Event::Eof => return text,
                _ => {}
            }
        }
    }

    #[test]
    fn entities_are_replaced_by_one_character_each() {
        assert_eq!(text("a&lt;b&gt; &amp;lt; &#65;&#x42;"), "a<b> &lt; AB");
        assert_eq!(text("&unknown; & &#xffffffff; &"), "&unknown; & &#xffffffff; &");
    }

    #[test]
    fn long_texts_are_rejected_without_being_read() {
        let endless = io::BufReader::new(io::repeat(b'a'));
        let mut reader = Reader::from_reader(LimitedReader { file: endless, left: MAX_TEXT_BYTES });
        let error = reader.read_event_into(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("longer than 1048576 bytes"), "{error}");
    }
}
