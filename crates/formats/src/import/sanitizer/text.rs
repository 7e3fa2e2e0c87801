//! The text of a report. Lines of the tool begin with a prefix; what the program prints is between
//! them. Versions differ in how a frame is written, and how many lines it takes.

use std::io::{BufRead, Read};
use std::path::Path;

use super::leak::{Leak, Leaks, Place, Sort};
use crate::import::Error;

/// Longer lines are cut.
const LONGEST_LINE: u64 = 1 << 16;

/// The prefix, if no other is given.
const PREFIX: &str = "=========";

/// The first words of a report.
const TITLES: [&str; 2] = ["COMPUTE-SANITIZER", "CUDA-MEMCHECK"];

/// Whether the beginning of a file is that of a report.
pub(in crate::import) fn is_text(head: &[u8]) -> bool {
    head.split(|&byte| byte == b'\n').any(|line| {
        let line = String::from_utf8_lossy(line.get(..1024).unwrap_or(line));
        title(&line).is_some() || line.starts_with(PREFIX) && line.contains(" Leaked ")
    })
}

/// The prefix of a line with a title.
fn title(line: &str) -> Option<&str> {
    TITLES.iter().find_map(|title| line.trim_end().strip_suffix(title)).map(str::trim_end)
}

/// Reads a report line by line.
pub(super) fn read(
    path: &Path,
    mut file: impl BufRead,
    leaks: &mut Leaks<'_>,
) -> Result<(), Error> {
    let mut reader = Reader { prefix: PREFIX.into(), leak: None, open: None, leaks };
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let failed = |source| Error::Io { path: path.into(), source };
        let length =
            file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes).map_err(failed)?;
        if length == 0 {
            break;
        }
        if bytes.last() != Some(&b'\n') {
            file.skip_until(b'\n').map_err(failed)?;
        }
        reader.line(String::from_utf8_lossy(&bytes).trim_end());
    }
    reader.end();
    leaks.without_summary = leaks.summary.is_none();
    Ok(())
}

struct Reader<'r, 'a> {
    prefix: String,
    /// The leak whose lines are being read.
    leak: Option<Leak>,
    /// Its frame whose module may be on the next line.
    open: Option<Place>,
    leaks: &'r mut Leaks<'a>,
}

impl Reader<'_, '_> {
    fn line(&mut self, line: &str) {
        if let Some(prefix) = title(line) {
            self.prefix = prefix.into();
            return self.end();
        }
        // What the program printed without a line end is before the prefix.
        let Some(at) = line.rfind(&self.prefix) else { return };
        let content = line.get(at + self.prefix.len()..).unwrap_or_default();
        let words = content.trim_start();
        if words.is_empty() {
            self.end();
        } else if let Some(frame) = words.strip_prefix("Host Frame:") {
            self.close();
            self.open = Some(place(frame));
        } else if let Some(module) = words.strip_prefix("in ")
            && let Some(open) = &mut self.open
        {
            open.module = Some(module.trim().into());
            self.close();
        } else if content.starts_with("   ") {
            // Headings of stacks, and details of errors that are no leaks.
            self.close();
        } else {
            self.end();
            self.heading(words);
        }
    }

    fn heading(&mut self, words: &str) {
        if let Some(rest) = words.strip_prefix("Leaked ") {
            match leak(rest) {
                Some(leak) => self.leak = Some(leak),
                None if rest.starts_with("an ") || rest.starts_with("a ") => self.leaks.others += 1,
                None => self.leaks.unclear += 1,
            }
        } else if let Some(sums) = words.strip_prefix("LEAK SUMMARY: ") {
            // Several processes have a summary each.
            if let Some((bytes, count)) = summary(sums) {
                let (all_bytes, all) = self.leaks.summary.unwrap_or_default();
                let sum = (all_bytes.saturating_add(bytes), all.saturating_add(count));
                self.leaks.summary = Some(sum);
            } else {
                self.leaks.unclear += 1;
            }
        } else if words.contains("not printed") || words.contains("skipped") {
            let count = words.split_whitespace().find_map(number).unwrap_or(1);
            self.leaks.left_out = self.leaks.left_out.saturating_add(count.max(1));
        } else if words.starts_with("Program hit ") {
            self.leaks.api_errors += 1;
        } else if words.starts_with("Invalid ") || words.starts_with("Error: ") {
            self.leaks.others += 1;
        }
    }

    /// The frame is complete.
    fn close(&mut self) {
        if let (Some(place), Some(leak)) = (self.open.take(), &mut self.leak) {
            leak.push(place);
        }
    }

    /// The record is complete.
    fn end(&mut self) {
        self.close();
        if let Some(leak) = self.leak.take() {
            self.leaks.tell(leak);
        }
    }
}

/// `8,388,608 bytes at 0x7fa51e800000` and its like.
fn leak(words: &str) -> Option<Leak> {
    let (bytes, rest) = words.split_once(' ')?;
    let rest = rest.strip_prefix("bytes ").or_else(|| rest.strip_prefix("byte "))?;
    let (address, sort) = if let Some(rest) = rest.strip_prefix("from CUDA array ") {
        (rest, Sort::Array)
    } else {
        let rest = rest.strip_prefix("at ")?;
        (rest, if rest.contains("device heap") { Sort::Heap } else { Sort::Plain })
    };
    let address = address.split_whitespace().next()?.strip_prefix("0x")?;
    let digits = address.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
    let address = u64::from_str_radix(digits, 16).ok()?;
    Some(Leak { bytes: number(bytes)?, address, sort, frames: Vec::new() })
}

/// `10498048 bytes leaked in 5 allocations`.
fn summary(words: &str) -> Option<(u64, u64)> {
    let mut numbers = words.split_whitespace().filter_map(number);
    Some((numbers.next()?, numbers.next()?))
}

/// A number, perhaps with commas between thousands.
fn number(word: &str) -> Option<u64> {
    word.replace(',', "").parse().ok()
}

/// A frame, after `Host Frame:`. From 2025.1 on `FUNC in FILE:LINE [0xOFFSET] in MODULE`; before that
/// `FILE:LINE:FUNC [0xOFFSET]`, and the module is on the next line.
fn place(text: &str) -> Place {
    let older = !text.starts_with(' ');
    let (code, behind) = match text.rfind("[0x") {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at..).unwrap_or_default()),
        None => (text, ""),
    };
    let code = code.trim();
    let module = behind.split_once("] in ").map(|(_, module)| module.trim().to_owned());
    let source = if older { older_source(code) } else { newer_source(code) };
    let (function, file, line) = source.unwrap_or((code, None, 0));
    Place { function: function.into(), file: file.map(Into::into), line, module }
}

fn newer_source(code: &str) -> Option<(&str, Option<&str>, u32)> {
    let (function, source) = code.rsplit_once(" in ")?;
    let (file, line) = source.rsplit_once(':')?;
    Some((function, Some(file), line.parse().ok()?))
}

/// A function may have colons too, so the first number between two of them is the line.
fn older_source(code: &str) -> Option<(&str, Option<&str>, u32)> {
    code.match_indices(':').find_map(|(at, _)| {
        let (line, function) = code.get(at + 1..)?.split_once(':')?;
        let line = line.parse().ok()?;
        Some((function, Some(code.get(..at)?), line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_versions_are_understood() {
        let of = |text| {
            let place = place(text);
            (
                place.function,
                place.file.unwrap_or_default(),
                place.line,
                place.module.unwrap_or_default(),
            )
        };
        let expect = |function: &str, file: &str, line, module: &str| {
            (function.to_owned(), file.to_owned(), line, module.to_owned())
        };
        assert_eq!(of(" cudaMalloc [0x51006] in app"), expect("cudaMalloc", "", 0, "app"));
        assert_eq!(of(" f(int) in a b.cu:12 [0x9] in app"), expect("f(int)", "a b.cu", 12, "app"));
        assert_eq!(of("  [0x51006]"), expect("", "", 0, ""));
        assert_eq!(of(" [0x51006]"), expect("", "", 0, ""));
        assert_eq!(of("cuMemAlloc_v2 [0x1]"), expect("cuMemAlloc_v2", "", 0, ""));
        assert_eq!(of("/src/a.cu:12:ns::f(int) [0x1]"), expect("ns::f(int)", "/src/a.cu", 12, ""));
        assert_eq!(of("ns::f(int) [0x1]"), expect("ns::f(int)", "", 0, ""));
    }

    #[test]
    fn leaks_of_all_sorts_are_understood() {
        let of = |text| leak(text).map(|leak| (leak.bytes, leak.address, leak.sort));
        assert_eq!(of("8,388,608 bytes at 0x7f00"), Some((8 << 20, 0x7f00, Sort::Plain)));
        assert_eq!(of("64 bytes at 0x10 on the device heap"), Some((64, 0x10, Sort::Heap)));
        assert_eq!(of("16384 bytes from CUDA array 0x55"), Some((16384, 0x55, Sort::Array)));
        assert_eq!(of("1 byte at 0x1."), Some((1, 1, Sort::Plain)));
        assert_eq!(of("an OptixModule with handle 0x5"), None);
        assert_eq!(of("-1 bytes at 0x5"), None);
        assert_eq!(of("5 bytes at 0x123456789abcdef01"), None);
    }
}
