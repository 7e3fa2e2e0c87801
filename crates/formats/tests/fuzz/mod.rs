//! Fuzz targets of this crate: each reads one input and checks what must hold for any input. The
//! package `fuzz/` includes this module; the test here replays inputs that failed before.

#[path = "../../../../fuzz/src/live_set.rs"]
mod live_set;
mod recording;
mod reports;

use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::sync::OnceLock;

use engine::metrics::label::is_invisible;
use engine::model::change::AllocationChange;
use engine::model::units::Timestamp;
use formats::import;
use formats::import::collecting_sink::{ChangeFilter, CollectingSink, FileInfo};
use formats::import::nvidia_smi;

use live_set::LiveSet;
use reports::Analyses;

pub(crate) use recording::recording;

/// Expensive checks of one input take turns, so that more inputs are run. The test runs them all.
struct Rotation(u64);

impl Rotation {
    fn of(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Self(hasher.finish())
    }

    /// Whether one of several checks is due.
    fn is(&self, number: u64, of: u64) -> bool {
        cfg!(test) || self.0 % of == number
    }
}

/// Maximum length of an error message, in bytes.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// Reads a file of any supported format, as the verbs do, and writes every report about it. Returns
/// whether the file was read.
pub(crate) fn import(bytes: &[u8]) -> bool {
    let path = input_file(bytes);
    let scope = match import::detect(&path) {
        Ok(source) => source.scope(),
        Err(error) => return reject(&error),
    };
    let (mut live, mut analyses) = (LiveSet::default(), Analyses::new(scope));
    let mut each = |change: &AllocationChange, _: &FileInfo| {
        live.apply(change);
        analyses.observe(change);
    };
    let mut progress = |done, total| assert!(done <= total, "{done} of {total}");
    let mut sink = CollectingSink::new(ChangeFilter::default(), &mut each, &mut progress);
    let imported = match import::open(&path, &mut sink, |_| None) {
        Ok(imported) => imported,
        Err(error) => return reject(&error),
    };
    let info = sink.info;
    assert!(info.warnings.iter().all(|warning| warning.count > 0), "{:?}", info.warnings);
    analyses.write(&imported, &info, &live, &Rotation::of(bytes));
    true
}

/// Reads a log of nvidia-smi, and aligns it with itself.
pub(crate) fn smi(bytes: &[u8]) -> bool {
    // Other files are rejected before they are parsed.
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let log = match nvidia_smi::parse(text) {
        Ok(log) => log,
        Err(error) => return reject(&error),
    };
    assert!(!log.gpus.is_empty());
    for gpu in &log.gpus {
        assert!(gpu.points.is_sorted_by_key(|(time, _)| *time), "{gpu:?}");
        let first = gpu.points.first().map_or(0, |(time, _)| *time);
        let shift = |(time, bytes): &(i64, u64)| (Timestamp(time.abs_diff(first)), *bytes);
        let usage: Vec<_> = gpu.points.iter().map(shift).collect();
        for offset in [None, Some(0), Some(first.wrapping_neg()), Some(i64::MIN), Some(i64::MAX)] {
            match nvidia_smi::align(gpu, &usage, offset) {
                Ok(fit) => {
                    assert!(offset.is_none_or(|offset| fit.offset == offset));
                    assert!((-1.001..=1.001).contains(&fit.score), "score {}", fit.score);
                }
                Err(error) => drop(reject(&error)),
            }
        }
    }
    true
}

/// Checks an error message: one bounded line without control characters.
fn reject(error: &dyn std::error::Error) -> bool {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < MAX_MESSAGE_BYTES, "{} bytes", text.len());
    assert_printable(&text);
    false
}

/// Checks that a text cannot control a terminal.
fn assert_printable(text: &str) {
    let is_plain = text.bytes().fold(true, |plain, byte| plain & (0x20..0x7f).contains(&byte));
    if !is_plain {
        let bad = text.chars().find(|&c| c.is_control() || is_invisible(c));
        assert_eq!(bad, None, "{text:?}");
    }
}

/// Checks the lines of a report.
fn assert_lines(report: Vec<u8>) {
    String::from_utf8(report).unwrap().lines().for_each(assert_printable);
}

/// Writes the input to a file, the same one each time.
fn input_file(bytes: &[u8]) -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        std::env::temp_dir().join(format!("vramscope-fuzz-{}", std::process::id()))
    });
    std::fs::write(path, bytes).unwrap();
    path.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_failed_before_are_handled() {
        let mut count = 0;
        for (target, run) in
            [("import", import as fn(&[u8]) -> bool), ("smi", smi), ("recording", recording)]
        {
            let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/inputs");
            for file in std::fs::read_dir(dir.join(target)).into_iter().flatten() {
                run(&std::fs::read(file.unwrap().path()).unwrap());
                count += 1;
            }
        }
        std::fs::remove_file(input_file(&[])).unwrap();
        assert!(count > 0);
    }
}
