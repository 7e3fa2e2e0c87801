//! Text reports. Lines of the tool begin with a prefix; output of the program is in between.
//! Versions differ in the format of a frame, and in the number of its lines.

use std::io::{BufRead, Read};
use std::path::Path;

use super::leak::{LeakCollector, LeakKind, ReportFrame, ReportedLeak};
use crate::import::ImportError;

/// Maximum length of a line; longer ones are truncated.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// Default prefix.
const PREFIX: &str = "=========";

/// Titles of a report.
const TITLES: [&str; 2] = ["COMPUTE-SANITIZER", "CUDA-MEMCHECK"];

/// Returns whether the start of a file is that of a report.
pub(crate) fn is_text(head: &[u8]) -> bool {
    head.split(|&byte| byte == b'\n').any(|line| {
        let line = String::from_utf8_lossy(line.get(..1024).unwrap_or(line));
        title(&line).is_some() || line.starts_with(PREFIX) && line.contains(" Leaked ")
    })
}

/// Returns the prefix of a line with a title.
fn title(line: &str) -> Option<&str> {
    TITLES.iter().find_map(|title| line.trim_end().strip_suffix(title)).map(str::trim_end)
}

/// Reads a report line by line.
pub(super) fn read(
    path: &Path,
    mut file: impl BufRead,
    leaks: &mut LeakCollector<'_>,
) -> Result<(), ImportError> {
    let mut reader = TextReader { prefix: PREFIX.into(), leak: None, frame: None, leaks };
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let failed = |source| ImportError::Io { path: path.into(), source };
        let length =
            file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes).map_err(failed)?;
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

struct TextReader<'r, 'a> {
    prefix: String,
    /// The leak whose lines are being read.
    leak: Option<ReportedLeak>,
    /// Its last frame, whose module may be on the next line.
    frame: Option<ReportFrame>,
    leaks: &'r mut LeakCollector<'a>,
}

impl TextReader<'_, '_> {
    fn line(&mut self, line: &str) {
        if let Some(prefix) = title(line) {
            self.prefix = prefix.into();
            return self.end();
        }
        // Output of the program without a line break is before the prefix.
        let Some(at) = line.rfind(&self.prefix) else { return };
        let content = line.get(at + self.prefix.len()..).unwrap_or_default();
        let text = content.trim_start();
        if text.is_empty() {
            self.end();
        } else if let Some(frame) = text.strip_prefix("Host Frame:") {
            self.close();
            self.frame = Some(parse_frame(frame));
        } else if let Some(module) = text.strip_prefix("in ")
            && let Some(frame) = &mut self.frame
        {
            frame.module = Some(module.trim().into());
            self.close();
        } else if content.starts_with("   ") {
            // Headings of stacks, and details of errors that are not leaks.
            self.close();
        } else {
            self.end();
            self.heading(text);
        }
    }

    fn heading(&mut self, text: &str) {
        if let Some(rest) = text.strip_prefix("Leaked ") {
            match leak(rest) {
                Some(leak) => self.leak = Some(leak),
                None if rest.starts_with("an ") || rest.starts_with("a ") => self.leaks.others += 1,
                None => self.leaks.unclear += 1,
            }
        } else if let Some(sums) = text.strip_prefix("LEAK SUMMARY: ") {
            // Each process has its own summary.
            if let Some((bytes, count)) = summary(sums) {
                let (all_bytes, all) = self.leaks.summary.unwrap_or_default();
                let sum = (all_bytes.saturating_add(bytes), all.saturating_add(count));
                self.leaks.summary = Some(sum);
            } else {
                self.leaks.unclear += 1;
            }
        } else if text.contains("not printed") || text.contains("skipped") {
            let count = text.split_whitespace().find_map(number).unwrap_or(1);
            self.leaks.left_out = self.leaks.left_out.saturating_add(count.max(1));
        } else if text.starts_with("Program hit ") {
            self.leaks.api_errors += 1;
        } else if text.starts_with("Invalid ") || text.starts_with("Error: ") {
            self.leaks.others += 1;
        }
    }

    /// Completes the frame.
    fn close(&mut self) {
        if let (Some(frame), Some(leak)) = (self.frame.take(), &mut self.leak) {
            leak.push(frame);
        }
    }

    /// Completes the record.
    fn end(&mut self) {
        self.close();
        if let Some(leak) = self.leak.take() {
            self.leaks.report(leak);
        }
    }
}

/// Parses `8,388,608 bytes at 0x7fa51e800000` and similar lines.
fn leak(text: &str) -> Option<ReportedLeak> {
    let (bytes, rest) = text.split_once(' ')?;
    let rest = rest.strip_prefix("bytes ").or_else(|| rest.strip_prefix("byte "))?;
    let (address, kind) = if let Some(rest) = rest.strip_prefix("from CUDA array ") {
        (rest, LeakKind::Array)
    } else {
        let rest = rest.strip_prefix("at ")?;
        (rest, if rest.contains("device heap") { LeakKind::Heap } else { LeakKind::Plain })
    };
    let address = address.split_whitespace().next()?.strip_prefix("0x")?;
    let digits = address.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
    let address = u64::from_str_radix(digits, 16).ok()?;
    Some(ReportedLeak { bytes: number(bytes)?, address, kind, frames: Vec::new() })
}

/// Parses `10498048 bytes leaked in 5 allocations`.
fn summary(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().filter_map(number);
    Some((numbers.next()?, numbers.next()?))
}

/// Parses a number, with or without commas between thousands.
fn number(word: &str) -> Option<u64> {
    word.replace(',', "").parse().ok()
}

/// Parses a frame, after `Host Frame:`. Since 2025.1 it is `FUNC in FILE:LINE [0xOFFSET] in
/// MODULE`; before that, `FILE:LINE:FUNC [0xOFFSET]`, with the module on the next line.
fn parse_frame(text: &str) -> ReportFrame {
    let older = !text.starts_with(' ');
    let (code, rest) = match text.rfind("[0x") {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at..).unwrap_or_default()),
        None => (text, ""),
    };
    let code = code.trim();
    let module = rest.split_once("] in ").map(|(_, module)| module.trim().to_owned());
    let source = if older { older_source(code) } else { newer_source(code) };
    let (function, file, line) = source.unwrap_or((code, None, 0));
    ReportFrame { function: function.into(), file: file.map(Into::into), line, module }
}

fn newer_source(code: &str) -> Option<(&str, Option<&str>, u32)> {
    let (function, source) = code.rsplit_once(" in ")?;
    let (file, line) = source.rsplit_once(':')?;
    Some((function, Some(file), line.parse().ok()?))
}

/// Parses a source location. A function may also contain colons, so the first number between two of
/// them is the line.
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
    fn frames_of_all_versions_are_parsed() {
        let parsed = |text| {
            let frame = parse_frame(text);
            (
                frame.function,
                frame.file.unwrap_or_default(),
                frame.line,
                frame.module.unwrap_or_default(),
            )
        };
        let expect = |function: &str, file: &str, line, module: &str| {
            (function.to_owned(), file.to_owned(), line, module.to_owned())
        };
        assert_eq!(parsed(" cudaMalloc [0x51006] in app"), expect("cudaMalloc", "", 0, "app"));
        let parsed_cu = parsed(" f(int) in a b.cu:12 [0x9] in app");
        assert_eq!(parsed_cu, expect("f(int)", "a b.cu", 12, "app"));
        assert_eq!(parsed("  [0x51006]"), expect("", "", 0, ""));
        assert_eq!(parsed(" [0x51006]"), expect("", "", 0, ""));
        assert_eq!(parsed("cuMemAlloc_v2 [0x1]"), expect("cuMemAlloc_v2", "", 0, ""));
        let parsed_ns = parsed("/src/a.cu:12:ns::f(int) [0x1]");
        assert_eq!(parsed_ns, expect("ns::f(int)", "/src/a.cu", 12, ""));
        assert_eq!(parsed("ns::f(int) [0x1]"), expect("ns::f(int)", "", 0, ""));
    }

    #[test]
    fn leaks_of_all_kinds_are_parsed() {
        let parsed = |text| leak(text).map(|leak| (leak.bytes, leak.address, leak.kind));
        assert_eq!(parsed("8,388,608 bytes at 0x7f00"), Some((8 << 20, 0x7f00, LeakKind::Plain)));
        assert_eq!(parsed("64 bytes at 0x10 on the device heap"), Some((64, 0x10, LeakKind::Heap)));
        assert_eq!(
            parsed("16384 bytes from CUDA array 0x55"),
            Some((16384, 0x55, LeakKind::Array))
        );
        assert_eq!(parsed("1 byte at 0x1."), Some((1, 1, LeakKind::Plain)));
        assert_eq!(parsed("an OptixModule with handle 0x5"), None);
        assert_eq!(parsed("-1 bytes at 0x5"), None);
        assert_eq!(parsed("5 bytes at 0x123456789abcdef01"), None);
    }
}
