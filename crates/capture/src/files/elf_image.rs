//! A program or library that stays mapped, for its unwind tables now and its symbols later, even if
//! the file is deleted and all processes that used it exit.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::Mmap;
use object::elf::{PF_X, PT_LOAD, SHN_UNDEF, Sym64};
use object::read::elf::{ElfFile64, ProgramHeader, SectionHeader, Sym};
use object::{Object, ObjectSection};

use super::sigbus_guard;
use crate::libraries::ARCHITECTURE;

/// How an ELF file is read.
pub(crate) type Elf<'data> = ElfFile64<'data, object::Endianness, &'data [u8]>;

/// An executable segment of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

/// A mapped ELF file.
pub(crate) struct ElfImage {
    map: Arc<Mmap>,
    /// Kept only if the file cannot be opened again through its mapping.
    file: Option<File>,
    segments: Box<[Segment]>,
    /// Virtual addresses in the file.
    addresses: Range<u64>,
    build_id: Option<Arc<[u8]>>,
}

/// Reason why a file cannot be used.
#[derive(Debug)]
pub(crate) enum ImageError {
    /// It is not a program or library for this machine.
    NotElf,
    /// It cannot be read.
    Unreadable,
}

/// Maps a file, so that sizes in it never lead to an allocation.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    sigbus_guard::install();
    // SAFETY: the mapping is private and never written to. Other processes can change the file
    // meanwhile: all readers accept any content and copy what they keep, and a file that shrinks
    // reads as zeros (see `sigbus_guard`).
    unsafe { Mmap::map(file) }
}

/// Maximum number of symbols of a file, and of bytes of a name, that are read.
const MAX_SYMBOLS: usize = 1 << 22;
const MAX_SYMBOL_BYTES: usize = 256;

/// Returns the dynamic or all symbols that a file defines, with their names.
pub(crate) fn symbols<'data>(
    elf: &Elf<'data>,
    dynamic: bool,
) -> impl Iterator<Item = (&'data [u8], &'data Sym64<object::Endianness>)> {
    let endian = elf.endian();
    let table = if dynamic { elf.elf_dynamic_symbol_table() } else { elf.elf_symbol_table() };
    let names = elf.elf_section_table().section(table.string_section());
    let names = names.and_then(|names| names.data(endian, elf.data())).unwrap_or_default();
    let defined =
        table.iter().take(MAX_SYMBOLS).filter(move |one| one.st_shndx(endian) != SHN_UNDEF);
    defined.filter_map(move |symbol| {
        let name = names.get(symbol.st_name(endian) as usize..)?;
        let end = name.iter().take(MAX_SYMBOL_BYTES).position(|&byte| byte == 0)?;
        Some((name.get(..end)?, symbol))
    })
}

impl ElfImage {
    /// Maps an open file and reads its headers.
    pub(crate) fn of(file: File) -> Result<Self, ImageError> {
        let map = map(&file).map_err(|_| ImageError::Unreadable)?;
        let elf = Elf::parse(&map[..]).map_err(|_| ImageError::NotElf)?;
        if elf.architecture() != ARCHITECTURE {
            return Err(ImageError::NotElf);
        }
        let segments = segments(&elf);
        let addresses = addresses(&elf);
        let build_id = elf.build_id().ok().flatten().filter(|id| !id.is_empty()).map(Arc::from);
        let map = Arc::new(map);
        let mut image = Self { map, file: Some(file), segments, addresses, build_id };
        if std::fs::metadata(image.through_mapping()).is_ok() {
            image.file = None;
        }
        Ok(image)
    }

    /// Returns the virtual address of a file offset in a code segment.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let inside = offset.checked_sub(segment.offset)?;
            (inside < segment.bytes).then(|| segment.address.checked_add(inside))?
        })
    }

    pub(crate) fn addresses(&self) -> Range<u64> {
        self.addresses.clone()
    }

    pub(crate) fn build_id(&self) -> Option<&Arc<[u8]>> {
        self.build_id.as_ref()
    }

    /// Returns whether two files have the same code. A build id alone can be forged.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.build_id.is_some()
            && self.build_id == other.build_id
            && self.map.len() == other.map.len()
            && self.segments == other.segments
    }

    /// Returns a path to the file that works even if it was renamed or deleted.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.file {
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => self.through_mapping(),
        }
    }

    /// Returns a path that needs no open file descriptor, of which a process has few. It needs a
    /// capability that a tracer usually has.
    fn through_mapping(&self) -> PathBuf {
        let start = self.map.as_ptr() as usize;
        let end = start.saturating_add(self.map.len().next_multiple_of(sigbus_guard::page_size()));
        PathBuf::from(format!("/proc/self/map_files/{start:x}-{end:x}"))
    }

    /// Parses the headers again.
    pub(crate) fn elf(&self) -> Option<Elf<'_>> {
        Elf::parse(&self.map[..]).ok()
    }

    /// Returns the virtual addresses of a section and its bytes.
    pub(crate) fn section(&self, elf: &Elf<'_>, name: &str) -> Option<(Range<u64>, FileRange)> {
        let section = elf.section_by_name(name)?;
        let (start, bytes) = section.file_range()?;
        let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(bytes).ok()?);
        let range = start..start.checked_add(bytes)?;
        self.map.get(range.clone())?;
        let address = section.address();
        let addresses = address..address.checked_add(section.size())?;
        Some((addresses, FileRange { map: Arc::clone(&self.map), range }))
    }
}

fn segments(elf: &Elf<'_>) -> Box<[Segment]> {
    let endian = elf.endian();
    let loaded = elf
        .elf_program_headers()
        .iter()
        .filter(|header| header.p_type(endian) == PT_LOAD && header.p_flags(endian).contains(PF_X));
    let segment = |header: &object::elf::ProgramHeader64<object::Endianness>| Segment {
        offset: header.p_offset(endian),
        bytes: header.p_filesz(endian),
        address: header.p_vaddr(endian),
    };
    loaded.map(segment).collect()
}

fn addresses(elf: &Elf<'_>) -> Range<u64> {
    let endian = elf.endian();
    let (mut first, mut last) = (u64::MAX, 0);
    for header in elf.elf_program_headers() {
        if header.p_type(endian) == PT_LOAD {
            let start = header.p_vaddr(endian);
            first = first.min(start & !0xfff);
            last = last.max(start.saturating_add(header.p_memsz(endian)));
        }
    }
    first.min(last)..last
}

/// A range of a mapped file, checked at construction.
pub(crate) struct FileRange {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl Deref for FileRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.get(self.range.clone()).unwrap_or(&[])
    }
}
