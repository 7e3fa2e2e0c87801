//! Phrases for live memory. Each class of memory has its own sum: bytes of device memory and of
//! host memory are never added.

use engine::model::{Bytes, MemoryKind, MemoryLayer};
use engine::snapshot::KindView;

/// The classes, each with the prefix of its sum. Device memory and tensors have no prefix: reports
/// list them separately.
const CLASSES: [(&str, &[MemoryLayer]); 5] = [
    ("", &[MemoryLayer::Physical, MemoryLayer::Used, MemoryLayer::Cached]),
    ("managed ", &[MemoryLayer::Managed]),
    ("host ", &[MemoryLayer::Host]),
    ("imported ", &[MemoryLayer::Imported]),
    ("other ", &[MemoryLayer::Reserved, MemoryLayer::Unknown]),
];

/// The sum of one class.
struct Sum {
    word: &'static str,
    bytes: Bytes,
    allocations: u64,
    unknown_sizes: u64,
}

/// Returns the class of a kind; `None` for device memory.
pub(super) fn class(kind: MemoryKind) -> Option<&'static str> {
    let found = CLASSES.iter().find(|(_, layers)| layers.contains(&kind.layer()));
    found.map(|(word, _)| word.trim_end()).filter(|word| !word.is_empty())
}

/// Returns the sums of all classes with live memory.
fn sums(kinds: impl Iterator<Item = KindView>) -> impl Iterator<Item = Sum> {
    let kinds: Vec<_> = kinds.collect();
    let sum = move |(word, layers): (&'static str, &[MemoryLayer])| {
        let empty = Sum { word, bytes: Bytes(0), allocations: 0, unknown_sizes: 0 };
        let own = kinds.iter().filter(|view| layers.contains(&view.kind.layer()));
        own.fold(empty, |sum, view| Sum {
            bytes: Bytes(sum.bytes.0.saturating_add(view.live_bytes.0)),
            allocations: sum.allocations.saturating_add(view.live_allocations),
            unknown_sizes: sum.unknown_sizes.saturating_add(view.unknown_sizes),
            ..sum
        })
    };
    CLASSES.into_iter().map(sum).filter(|sum| sum.allocations > 0)
}

/// Returns `24.00 MiB in 3 allocations; host 1.05 GiB in 1080 allocations`.
pub(super) fn held(kinds: impl Iterator<Item = KindView>, count: &dyn Fn(u64) -> String) -> String {
    let part = |Sum { word, bytes, allocations, unknown_sizes }| {
        format!("{word}{}", counted(bytes, allocations, unknown_sizes, count))
    };
    let parts: Vec<_> = sums(kinds).map(part).collect();
    if parts.is_empty() { format!("0 B in {}", count(0)) } else { parts.join("; ") }
}

/// Returns `512 B in 3 allocations, 1 of unknown size`.
pub(super) fn counted(
    bytes: Bytes,
    allocations: u64,
    unknown_sizes: u64,
    count: &dyn Fn(u64) -> String,
) -> String {
    let number = count(allocations);
    match unknown_sizes {
        0 => format!("{bytes} in {number}"),
        n if n == allocations => format!("{number} of unknown size"),
        n => format!("{bytes} in {number}, {n} of unknown size"),
    }
}

/// Returns `24.00 MiB and host 1.05 GiB`: the same without numbers of allocations.
pub(super) fn sizes(kinds: impl Iterator<Item = KindView>) -> String {
    let part = |Sum { word, bytes, allocations, unknown_sizes }| {
        if unknown_sizes == allocations {
            format!("{word}memory of unknown size")
        } else {
            format!("{word}{bytes}")
        }
    };
    let parts: Vec<_> = sums(kinds).map(part).collect();
    if parts.is_empty() { Bytes(0).to_string() } else { parts.join(" and ") }
}

/// Returns `pinned 4.00 KiB (host)`: one kind, with its class.
pub(super) fn kind(view: KindView) -> String {
    let KindView { kind, live_bytes, unknown_sizes, .. } = view;
    let class = class(kind).filter(|class| *class != kind.name());
    let class = class.map_or_else(String::new, |class| format!(" ({class})"));
    match (live_bytes, unknown_sizes) {
        (Bytes(0), 1..) => format!("{kind} of unknown size{class}"),
        (bytes, _) => format!("{kind} {bytes}{class}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::format_count;
    use super::*;

    fn of(kind: MemoryKind, bytes: u64, allocations: u64, unknown_sizes: u64) -> KindView {
        KindView { kind, live_bytes: Bytes(bytes), live_allocations: allocations, unknown_sizes }
    }

    #[test]
    fn classes_have_separate_sums() {
        let kinds = [
            of(MemoryKind::Device, 1 << 20, 2, 0),
            of(MemoryKind::Async, 1 << 20, 1, 0),
            of(MemoryKind::Managed, 4096, 1, 0),
            of(MemoryKind::Pinned, 1 << 30, 1080, 0),
            of(MemoryKind::Registered, 1 << 30, 1, 0),
            of(MemoryKind::Imported, 512, 3, 1),
        ];
        assert_eq!(
            held(kinds.into_iter(), &format_count),
            "2.00 MiB in 3 allocations; managed 4.00 KiB in 1 allocation; host 2.00 GiB in 1081 \
             allocations; imported 512 B in 3 allocations, 1 of unknown size"
        );
        let sums = "2.00 MiB and managed 4.00 KiB and host 2.00 GiB and imported 512 B";
        assert_eq!(sizes(kinds.into_iter()), sums);
    }

    #[test]
    fn unknown_sizes_are_not_zero_bytes() {
        let imported = [of(MemoryKind::Imported, 0, 10, 10)];
        assert_eq!(
            held(imported.into_iter(), &format_count),
            "imported 10 allocations of unknown size"
        );
        assert_eq!(sizes(imported.into_iter()), "imported memory of unknown size");
        assert_eq!(kind(imported[0]), "imported of unknown size");
        assert_eq!(kind(of(MemoryKind::Pinned, 4096, 1, 0)), "pinned 4.00 KiB (host)");
        assert_eq!(held(std::iter::empty(), &format_count), "0 B in 0 allocations");
        assert_eq!(sizes(std::iter::empty()), "0 B");
    }
}
