//! Checks whether a file can be passed to the symbolizer, and finds separate debug information.
//!
//! The symbolizer follows links to other files and trusts the stated size of compressed sections.
//! Traced programs are not trusted, so both are checked first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::{Object, ObjectSection};

use crate::files::{ElfImage, open_regular};

/// Where distributions install debug information.
const DEBUG_DIR: &str = "/usr/lib/debug";
/// Maximum uncompressed size of all sections of a file.
const MAX_UNPACKED_BYTES: u64 = 4 << 30;
/// Maximum compression ratio; deflate reaches at most 1032.
const MAX_COMPRESSION_RATIO: u64 = 1100;

/// Which symbols of a file can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DebugInfoStatus {
    /// Symbols and debug information.
    All,
    /// Symbols only: its links could lead to any file.
    Symbols,
    /// None: it claims an impossible uncompressed size.
    Nothing,
}

/// Returns which symbols of an untrusted file can be read.
pub(super) fn readable(image: &ElfImage) -> DebugInfoStatus {
    let Some(elf) = image.elf() else { return DebugInfoStatus::Nothing };
    let mut unpacked: u64 = 0;
    for section in elf.sections() {
        let Ok(range) = section.compressed_file_range() else { return DebugInfoStatus::Nothing };
        if range.format == object::CompressionFormat::None {
            continue;
        }
        unpacked = unpacked.saturating_add(range.uncompressed_size);
        let max = range.compressed_size.saturating_mul(MAX_COMPRESSION_RATIO);
        if range.uncompressed_size > max || unpacked > MAX_UNPACKED_BYTES {
            return DebugInfoStatus::Nothing;
        }
    }
    let links = [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"];
    let has_link = links.iter().any(|name| elf.section_by_name(name).is_some());
    if has_link { DebugInfoStatus::Symbols } else { DebugInfoStatus::All }
}

/// Finds the separate debug file of a module. It must have the build id of the module.
pub(super) fn find(path: &str, image: &ElfImage) -> Option<ElfImage> {
    let build_id = image.build_id()?;
    let found = by_build_id(build_id).and_then(|path| open(&path, build_id));
    // Files of the distribution are trusted: they may link to other debug files.
    if let Some(found) = found.filter(|found| readable(found) != DebugInfoStatus::Nothing) {
        return Some(found);
    }
    let candidates = by_link(Path::new(path), image).unwrap_or_default();
    let found = candidates.iter().find_map(|path| open(path, build_id))?;
    (readable(&found) == DebugInfoStatus::All).then_some(found)
}

fn open(path: &Path, build_id: &Arc<[u8]>) -> Option<ElfImage> {
    let image = ElfImage::of(open_regular(path).ok()?).ok()?;
    (image.build_id() == Some(build_id)).then_some(image)
}

fn by_build_id(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first().filter(|(_, rest)| rest.len() >= 7)?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PathBuf::from(format!("{DEBUG_DIR}/.build-id/{first:02x}/{rest}.debug")))
}

/// Returns the candidates for a debug link, in the directories that debuggers search.
fn by_link(path: &Path, image: &ElfImage) -> Option<Vec<PathBuf>> {
    let elf = image.elf()?;
    let (name, _) = elf.gnu_debuglink().ok()??;
    let name = std::str::from_utf8(name).ok()?;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let dir = path.parent()?;
    let installed = Path::new(DEBUG_DIR).join(dir.strip_prefix("/").ok()?);
    Some(vec![dir.join(name), dir.join(".debug").join(name), installed.join(name)])
}
