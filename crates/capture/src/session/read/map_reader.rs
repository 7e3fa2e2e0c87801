//! Reads whole BPF maps with few system calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle, libbpf_sys};

use super::super::load::bpf_object::map_error;
use crate::error::Error;

/// Entries requested per system call.
const BATCH_ENTRIES: u32 = 256;
const MAX_BATCH_ENTRIES: u32 = 1 << 20;

/// A key and its value; in per-CPU maps the values of all CPUs, one after the other.
pub(crate) type MapEntry = (Vec<u8>, Vec<u8>);

/// Reads every entry of a hash map.
///
/// Entries that are added at the same time may be missing; no entry is returned twice.
pub(crate) fn read_all(map: &MapHandle) -> Result<Vec<MapEntry>, Error> {
    in_batches(map).map_err(|error| map_error(&map.name().to_string_lossy())(error.into()))
}

/// Returns the size of an entry's value; in per-CPU maps of the values of all CPUs.
fn value_bytes(map: &MapHandle) -> usize {
    let value = map.value_size() as usize;
    if map.map_type().is_percpu() {
        value.next_multiple_of(8) * libbpf_rs::num_possible_cpus().unwrap_or(1)
    } else {
        value
    }
}

fn in_batches(map: &MapHandle) -> io::Result<Vec<MapEntry>> {
    let (key_bytes, value_bytes) = (map.key_size() as usize, value_bytes(map));
    let (mut capacity, mut entries) = (BATCH_ENTRIES, Vec::new());
    let (mut position, mut started) = ([0_u8; 64], false);
    let fd = map.as_fd().as_raw_fd();
    loop {
        let mut keys = vec![0_u8; key_bytes * capacity as usize];
        let mut values = vec![0_u8; value_bytes * capacity as usize];
        let (mut next, mut count) = ([0_u8; 64], capacity);
        let from = if started { position.as_mut_ptr().cast() } else { std::ptr::null_mut() };
        // SAFETY: keys and values have room for `count` entries of the map's sizes, the position
        // is at least as large as any key, and the call keeps no pointer.
        let outcome = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                fd,
                from,
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        if outcome == -libc::ENOSPC {
            // A bucket has more entries than fit; nothing was read.
            if capacity < MAX_BATCH_ENTRIES {
                capacity *= 2;
                continue;
            }
        }
        if outcome != 0 && outcome != -libc::ENOENT {
            return Err(io::Error::from_raw_os_error(-outcome));
        }
        let returned = count.min(capacity) as usize;
        let keys = keys.chunks_exact(key_bytes).take(returned);
        let values = values.chunks_exact(value_bytes);
        entries.extend(keys.zip(values).map(|(key, value)| (key.to_vec(), value.to_vec())));
        if outcome == -libc::ENOENT {
            return Ok(entries);
        }
        (position, started) = (next, true);
    }
}
