//! Cache of stacks by their encoded bytes.

use hashbrown::HashMap;

use super::super::pickle::memo::Memo;
use super::super::pickle::value::Value;
use super::frames::NOISE_FRAME;

/// Maximum size of the cached lists; beyond it, new stacks are read frame by frame.
const MAX_CACHE_BYTES: usize = 32 << 20;

/// Lists of references, and their sites.
#[derive(Default)]
pub(crate) struct StackCache {
    sites: HashMap<Box<[u8]>, u32>,
    bytes: usize,
}

impl StackCache {
    /// Returns the site of a list.
    #[inline]
    pub(crate) fn get(&self, list: &[u8]) -> Option<u32> {
        self.sites.get(list).copied()
    }

    /// Adds the site of a list.
    pub(crate) fn put(&mut self, list: &[u8], site: u32) {
        if self.bytes.saturating_add(list.len()) <= MAX_CACHE_BYTES {
            self.bytes += list.len();
            self.sites.insert(list.into(), site);
        }
    }

    /// Clears the cache. Called when memo entries were overwritten.
    pub(crate) fn clear(&mut self) {
        self.sites.clear();
        self.bytes = 0;
    }
}

/// Mask of the opcodes of three references with five bytes each.
const OPCODES: u128 = 0xff | 0xff << 40 | 0xff << 80;

/// Opcodes of three references with five bytes each.
const LONG_ONES: u128 = OPCODES & 0x6a6a_6a6a_6a6a_6a6a_6a6a_6a6a_6a6a_6a6a;

/// Returns the items of a list, if they are only references and all of them are in the window.
#[inline]
pub(crate) fn list_of_references(ahead: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        // Three long references at a time: they are most of a large file.
        while let Some(next) = ahead.get(at..).and_then(<[u8]>::first_chunk::<16>)
            && u128::from_le_bytes(*next) & OPCODES == LONG_ONES
        {
            at += 15;
        }
        match ahead.get(at)? {
            b'j' => at += 5,
            b'h' => at += 2,
            b'e' if at > 0 => return ahead.get(..at),
            _ => return None,
        }
    }
}

/// Calls `each` with the frames of a list of references, without uninformative ones. Returns false
/// if an item is not a frame.
pub(crate) fn frames(list: &[u8], memo: &Memo, mut each: impl FnMut(u32)) -> bool {
    let mut rest = list;
    loop {
        let index = match *rest {
            [b'h', index, ..] => {
                rest = rest.get(2..).unwrap_or_default();
                u32::from(index)
            }
            [b'j', a, b, c, d, ..] => {
                rest = rest.get(5..).unwrap_or_default();
                u32::from_le_bytes([a, b, c, d])
            }
            _ => return rest.is_empty(),
        };
        match memo.get(index) {
            Ok(Value::Frame(NOISE_FRAME)) => {}
            Ok(Value::Frame(frame)) => each(frame),
            _ => return false,
        }
    }
}
