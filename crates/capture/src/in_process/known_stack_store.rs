//! The store of known stacks in an area, which only the collector writes.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;

use super::area::{Header, KnownStack, known_chain};
use crate::wire::WireSlot;

/// First used offset; 0 means none.
const FIRST_OFFSET: u32 = 8;

/// Entries of the store, by instruction pointer, stack pointer and index.
#[derive(Debug, Default)]
pub(super) struct KnownStackStore {
    entries: HashMap<(u64, u64, u16), u32>,
}

impl KnownStackStore {
    /// Adds or replaces a stack. A full store is cleared: its stacks are sent again.
    ///
    /// # Safety
    ///
    /// `store` points to `size` bytes that the process reads and only the collector writes.
    pub(super) unsafe fn add(
        &mut self,
        header: &Header,
        (store, size): (*mut u8, u32),
        key: (u64, u64, u16),
        number: u64,
        slots: &[WireSlot],
    ) -> bool {
        // SAFETY: as for this function.
        unsafe { self.remove(store, key) };
        let bytes = (size_of::<KnownStack>() + slots.len() * 16) as u32;
        let used = header.known_used.load(Ordering::Relaxed).max(FIRST_OFFSET);
        let at = if used + bytes <= size {
            used
        } else {
            self.clear(header);
            FIRST_OFFSET
        };
        if at + bytes > size {
            return false;
        }
        let (ip, sp, index) = key;
        let head = &header.known_heads[known_chain(ip, sp)];
        // SAFETY: the space is inside of the store, aligned, and not part of a chain yet.
        unsafe {
            let entry = store.add(at as usize).cast::<KnownStack>();
            entry.write(KnownStack {
                ip,
                sp,
                number: AtomicU64::new(number),
                next: head.load(Ordering::Relaxed),
                index,
                count: slots.len() as u16,
            });
            let list = entry.add(1).cast::<[u64; 2]>();
            for (index, slot) in slots.iter().enumerate() {
                list.add(index).write([slot.offset, slot.value]);
            }
        }
        header.known_used.store(at + bytes, Ordering::Relaxed);
        head.store(at, Ordering::Release);
        self.entries.insert(key, at);
        true
    }

    /// Removes a stack.
    ///
    /// # Safety
    ///
    /// As for [`KnownStackStore::add`].
    pub(super) unsafe fn remove(&mut self, store: *mut u8, key: (u64, u64, u16)) {
        if let Some(at) = self.entries.remove(&key) {
            // SAFETY: the offsets are those of entries.
            let entry = unsafe { &*store.add(at as usize).cast::<KnownStack>() };
            entry.number.store(0, Ordering::Release);
        }
    }

    /// Clears the store. A process that reads it meanwhile detects the change by the version.
    fn clear(&mut self, header: &Header) {
        self.entries.clear();
        header.known_version.fetch_add(1, Ordering::AcqRel);
        header.known_heads.iter().for_each(|head| head.store(0, Ordering::Relaxed));
        header.known_used.store(FIRST_OFFSET, Ordering::Relaxed);
        header.known_version.fetch_add(1, Ordering::AcqRel);
    }
}
