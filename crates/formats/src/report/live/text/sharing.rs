//! Memory that a process shares with others.

use std::io;

use engine::snapshot::{ProcessView, ShareRole, SharedMemoryView};

use super::usage::counted;
use super::{TextPage, TextStyle, format_count};
use crate::sanitize::sanitize;

/// Maximum number of lines.
const MAX_LINES: usize = 5;

/// Writes one line per peer.
pub(super) fn section(out: &mut TextPage<'_>, view: &ProcessView) -> io::Result<()> {
    for shared in view.shared_memory.iter().take(MAX_LINES) {
        let paint = if shared.kept_alive { TextStyle::warning } else { TextStyle::plain };
        out.wrapped(paint, &format!("  {}", line(shared)), 4)?;
    }
    let hidden = view.shared_memory.len().saturating_sub(MAX_LINES);
    out.more(hidden as u64, "more processes that share memory (see --json)")
}

/// Returns `imported: 512.00 MiB in 1 allocation from pid 4711 (producer.py)`.
fn line(shared: &SharedMemoryView) -> String {
    let size = counted(shared.bytes, shared.allocations, shared.unknown_sizes, &format_count);
    let peer = shared.peer.as_ref().map_or_else(
        || "a process that is not traced".to_owned(),
        |(pid, program)| format!("pid {pid} ({})", sanitize(program)),
    );
    match (shared.role, shared.kept_alive) {
        (ShareRole::Exporter, false) => format!("shared: {size} with {peer}"),
        (ShareRole::Exporter, true) => format!("freed here: {size}, kept alive by {peer}"),
        (ShareRole::Importer, false) => format!("imported: {size} from {peer}"),
        (ShareRole::Importer, true) => {
            format!(
                "imported: {size} from {peer}, which no longer holds it: kept alive by this process"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::model::{Bytes, Pid};

    use super::*;

    #[test]
    fn lines_name_both_sides() {
        let peer = Some((Pid(4711), "train\x1b.py".into()));
        let shared = SharedMemoryView {
            role: ShareRole::Exporter,
            peer,
            bytes: Bytes(2 << 20),
            allocations: 1,
            unknown_sizes: 0,
            kept_alive: false,
        };
        let imported = SharedMemoryView { role: ShareRole::Importer, ..shared.clone() };
        let orphan = SharedMemoryView { kept_alive: true, ..imported.clone() };
        let freed = SharedMemoryView { kept_alive: true, ..shared.clone() };
        let unknown = SharedMemoryView {
            peer: None,
            bytes: Bytes(0),
            allocations: 3,
            unknown_sizes: 3,
            ..imported.clone()
        };
        let lines = [&shared, &freed, &imported, &orphan, &unknown].map(line);
        assert_eq!(
            lines,
            [
                "shared: 2.00 MiB in 1 allocation with pid 4711 (train\\u{1b}.py)",
                "freed here: 2.00 MiB in 1 allocation, kept alive by pid 4711 (train\\u{1b}.py)",
                "imported: 2.00 MiB in 1 allocation from pid 4711 (train\\u{1b}.py)",
                "imported: 2.00 MiB in 1 allocation from pid 4711 (train\\u{1b}.py), which no longer holds it: kept alive by this process",
                "imported: 3 allocations of unknown size from a process that is not traced",
            ]
        );
    }
}
