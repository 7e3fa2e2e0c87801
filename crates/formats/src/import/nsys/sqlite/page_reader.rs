//! Rows of a table read directly from SQLite's pages, several times as fast as through SQLite. Only
//! the common case is supported: a rowid table in a file that is not being written. Anything else
//! is [`Failed::Unusual`], and the caller uses SQLite instead.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::thread;

use super::parallel;
use super::record::{LayoutCache, RecordRow, varint};

/// Error of reading rows from the pages.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The layout is not supported, or damaged. SQLite may be able to read the file.
    Unusual,
    /// The file cannot be read at all.
    Io(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        // SQLite reports where a file is truncated.
        if error.kind() == ErrorKind::UnexpectedEof { Self::Unusual } else { Self::Io(error) }
    }
}

/// Maximum depth of a tree; deeper ones do not fit into a file.
const MAX_TREE_DEPTH: usize = 20;

/// Maximum size of a row of an export.
const MAX_RECORD_BYTES: u64 = 1 << 24;

/// Bytes that are read at once if pages are consecutive.
const READ_AHEAD_BYTES: usize = 1 << 18;

/// Files with fewer pages are read by one thread.
const MIN_PARALLEL_PAGES: u32 = if cfg!(test) { 16 } else { 1024 };

/// Types of pages of a table.
const LEAF: u8 = 0x0d;
const INTERIOR: u8 = 0x05;

/// A database file, read by page.
#[derive(Debug)]
pub(crate) struct PageReader {
    file: File,
    page: usize,
    usable: usize,
    count: u32,
}

impl PageReader {
    /// Reads and checks the header of a file.
    pub(crate) fn open(file: File) -> Result<Self, Failed> {
        let mut header = [0; 100];
        file.read_exact_at(&mut header, 0)?;
        let length = file.metadata()?.len();
        let number = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let page = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65536,
            size if size >= 512 && size.is_power_of_two() => size as usize,
            _ => return Err(Failed::Unusual),
        };
        let usable = page.checked_sub(header[20] as usize).ok_or(Failed::Unusual)?;
        let count = u32::try_from(length / page as u64).ok().ok_or(Failed::Unusual)?;
        // Neither write-ahead logging, nor an encoding other than UTF-8.
        let is_supported = header[18] == 1 && header[19] == 1 && number(56) == 1;
        if &header[..16] != b"SQLite format 3\0" || usable < 480 || !is_supported {
            return Err(Failed::Unusual);
        }
        Ok(Self { file, page, usable, count })
    }

    /// Calls `each` with the rows of the table whose tree has its root at page `root`, by rowid.
    /// Large files are decoded by other threads.
    pub(crate) fn rows<const N: usize, E>(
        &self,
        root: u32,
        positions: &[u8],
        each: impl FnMut(&RecordRow<'_, N>) -> Result<(), E>,
    ) -> Result<Result<(), E>, Failed> {
        let has_cores = || thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        if self.count >= MIN_PARALLEL_PAGES && has_cores() {
            parallel::rows(self, root, positions, each)
        } else {
            self.rows_in_sequence(root, positions, each)
        }
    }

    /// The same on this thread.
    pub(super) fn rows_in_sequence<const N: usize, E>(
        &self,
        root: u32,
        positions: &[u8],
        mut each: impl FnMut(&RecordRow<'_, N>) -> Result<(), E>,
    ) -> Result<Result<(), E>, Failed> {
        let mut leaves = LeafPages::new(self, root);
        let mut decoder = LeafDecoder::new(self, positions);
        while let Some(leaf) = leaves.next()? {
            if let Err(error) = decoder.rows(leaf, &mut each)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Returns the record of a cell with what follows it, and its length; `None` if it spans several
    /// pages.
    #[inline]
    fn record<'a>(&self, cell: &'a [u8]) -> Result<Option<(&'a [u8], usize)>, Failed> {
        let (payload, begin) = record_start(cell).ok_or(Failed::Unusual)?;
        if payload > self.usable as u64 - 35 {
            return Ok(None);
        }
        cell.get(begin..).map(|bytes| Some((bytes, payload as usize))).ok_or(Failed::Unusual)
    }

    /// Returns a record that spans several pages.
    #[cold]
    fn long_record(&self, cell: &[u8]) -> Result<Vec<u8>, Failed> {
        let (payload, begin) = record_start(cell).ok_or(Failed::Unusual)?;
        if payload > MAX_RECORD_BYTES {
            return Err(Failed::Unusual);
        }
        let (payload, usable) = (payload as usize, self.usable);
        let min = (usable - 12) * 32 / 255 - 23;
        let local = min + (payload - min) % (usable - 4);
        let local = if local <= usable - 35 { local } else { min };
        let mut record = cell.get(begin..begin + local).ok_or(Failed::Unusual)?.to_vec();
        let mut next = four(cell, begin + local)?;
        let mut buffer = vec![0; usable];
        while record.len() < payload {
            self.read(next, &mut buffer)?;
            next = four(&buffer, 0)?;
            let part = (payload - record.len()).min(usable - 4);
            record.extend_from_slice(buffer.get(4..4 + part).ok_or(Failed::Unusual)?);
        }
        Ok(record)
    }

    fn read(&self, number: u32, buffer: &mut [u8]) -> Result<(), Failed> {
        let page = number.checked_sub(1).filter(|_| number <= self.count).ok_or(Failed::Unusual)?;
        let offset = u64::from(page) * self.page as u64;
        Ok(self.file.read_exact_at(buffer, offset)?)
    }
}

/// The leaf pages of a table, in order. All leaves of a tree have the same depth, so only the first
/// one is read here.
pub(super) struct LeafPages<'f> {
    file: &'f PageReader,
    window: ReadAhead,
    visited: u32,
    leaf_depth: Option<usize>,
    /// Pages to visit, with their depth; the next one last.
    pending: Vec<(u32, usize)>,
}

impl<'f> LeafPages<'f> {
    pub(super) fn new(file: &'f PageReader, root: u32) -> Self {
        let (window, pending) = (ReadAhead::default(), vec![(root, 0)]);
        Self { file, window, visited: 0, leaf_depth: None, pending }
    }

    pub(super) fn next(&mut self) -> Result<Option<u32>, Failed> {
        while let Some((number, depth)) = self.pending.pop() {
            self.visited += 1;
            if self.visited > self.file.count || depth > MAX_TREE_DEPTH {
                return Err(Failed::Unusual);
            }
            if self.leaf_depth == Some(depth) {
                return Ok(Some(number));
            }
            let page = self.window.page(self.file, number)?;
            let header = header_offset(number);
            match page.get(header) {
                Some(&LEAF) if self.leaf_depth.is_none() => {
                    self.leaf_depth = Some(depth);
                    return Ok(Some(number));
                }
                Some(&INTERIOR) => {}
                _ => return Err(Failed::Unusual),
            }
            let cells = short(page, header + 3)?;
            self.pending.push((four(page, header + 8)?, depth + 1));
            for cell in (0..cells).rev() {
                let child = four(page, short(page, header + 12 + 2 * cell)?)?;
                self.pending.push((child, depth + 1));
            }
        }
        Ok(None)
    }
}

/// Decodes the rows of leaf pages.
pub(super) struct LeafDecoder<'f, 'p, const N: usize> {
    file: &'f PageReader,
    window: ReadAhead,
    layouts: LayoutCache<'p, N>,
}

impl<'f, 'p, const N: usize> LeafDecoder<'f, 'p, N> {
    pub(super) fn new(file: &'f PageReader, positions: &'p [u8]) -> Self {
        Self { file, window: ReadAhead::default(), layouts: LayoutCache::new(positions) }
    }

    /// Calls `each` with the rows of a page.
    pub(super) fn rows<E>(
        &mut self,
        number: u32,
        each: &mut impl FnMut(&RecordRow<'_, N>) -> Result<(), E>,
    ) -> Result<Result<(), E>, Failed> {
        let Self { file, window, layouts } = self;
        let page = window.page(file, number)?;
        let header = header_offset(number);
        if page.get(header) != Some(&LEAF) {
            return Err(Failed::Unusual);
        }
        let cells = short(page, header + 3)?;
        let mut row = RecordRow::EMPTY;
        for cell in 0..cells {
            let at = short(page, header + 8 + 2 * cell)?;
            let cell = page.get(at..file.usable).ok_or(Failed::Unusual)?;
            let passed = match file.record(cell)? {
                Some((bytes, length)) => {
                    layouts.decode(bytes, length, &mut row).ok_or(Failed::Unusual)?;
                    each(&row)
                }
                None => {
                    let record = file.long_record(cell)?;
                    let mut row = RecordRow::EMPTY;
                    layouts.decode(&record, record.len(), &mut row).ok_or(Failed::Unusual)?;
                    each(&row)
                }
            };
            if let Err(error) = passed {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

/// Returns the offset of a page's own header: the first page starts with that of the file.
const fn header_offset(number: u32) -> usize {
    if number == 1 { 100 } else { 0 }
}

/// Pages that were read together. Tables are mostly written in page order, so it reads further
/// ahead the longer that holds.
#[derive(Default)]
struct ReadAhead {
    bytes: Vec<u8>,
    first: u32,
    pages: u32,
}

impl ReadAhead {
    fn page(&mut self, file: &PageReader, number: u32) -> Result<&[u8], Failed> {
        let distance = number.wrapping_sub(self.first);
        if distance >= self.pages {
            let max = (READ_AHEAD_BYTES / file.page).max(1) as u32;
            let near = distance <= self.pages.saturating_mul(2);
            let pages = if near { self.pages * 2 } else { self.pages / 2 }.clamp(1, max);
            let remaining =
                file.count.checked_sub(number).ok_or(Failed::Unusual)?.saturating_add(1);
            let pages = pages.min(remaining);
            let length = pages as usize * file.page;
            if self.bytes.len() < length {
                self.bytes.resize(length, 0);
            }
            self.pages = 0;
            file.read(number, self.bytes.get_mut(..length).ok_or(Failed::Unusual)?)?;
            (self.first, self.pages) = (number, pages);
        }
        let at = number.wrapping_sub(self.first) as usize * file.page;
        self.bytes.get(at..at + file.page).ok_or(Failed::Unusual)
    }
}

/// Returns the length of a cell's record, and its offset: after that length and the rowid.
#[inline(always)]
fn record_start(cell: &[u8]) -> Option<(u64, usize)> {
    let (payload, mut begin) = varint(cell)?;
    let max = begin + 9;
    loop {
        let byte = *cell.get(begin)?;
        begin += 1;
        if byte < 0x80 || begin == max {
            return Some((payload, begin));
        }
    }
}

#[inline]
fn short(bytes: &[u8], at: usize) -> Result<usize, Failed> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Failed::Unusual)?;
    Ok(usize::from(u16::from_be_bytes(*bytes)))
}

#[inline]
fn four(bytes: &[u8], at: usize) -> Result<u32, Failed> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Failed::Unusual)?;
    Ok(u32::from_be_bytes(*bytes))
}
