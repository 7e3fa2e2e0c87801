//! Reads the BPF ring buffers in batches of bounded size.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{AsRawLibbpf, RingBuffer, RingBufferBuilder, libbpf_sys};

use super::super::load::bpf_object::LoadedObject;
use crate::decode::{Record, decode_all};
use crate::error::Error;
use crate::stacks::{StackRecord, read};

/// Maximum bytes of records per batch: 8000 calls. Batches queue up behind a slow consumer, so
/// their size bounds its memory.
const BATCH_BYTES: usize = 1 << 20;

/// Return value of a callback that stops reading after the current record.
const STOP: i32 = -1;

#[derive(Default)]
struct RecordBatch {
    records: Vec<Record>,
    stacks: Vec<StackRecord>,
    decode_errors: u64,
    /// Bytes that may still be read.
    record_bytes: usize,
    stack_bytes: usize,
}

/// Subtracts a record from the bytes that may be read; returns whether to continue.
const fn consume(remaining: &mut usize, bytes: usize) -> i32 {
    *remaining = remaining.saturating_sub(bytes);
    if *remaining == 0 { STOP } else { 0 }
}

pub(crate) struct RecordRing {
    records: RingBuffer<'static>,
    stacks: Option<RingBuffer<'static>>,
    batch: Rc<RefCell<RecordBatch>>,
    record_ring_bytes: usize,
    stack_ring_bytes: usize,
    /// The last batch left records in the ring.
    has_more: bool,
}

impl RecordRing {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        let batch = Rc::new(RefCell::new(RecordBatch::default()));
        let stacks = loaded.config.stacks.is_enabled();
        Ok(Self {
            records: open(loaded, "records", on_record(&batch, loaded.config.objects))?,
            stacks: stacks.then(|| open(loaded, "stack_records", on_stack(&batch))).transpose()?,
            batch,
            record_ring_bytes: loaded.config.ring_bytes as usize,
            stack_ring_bytes: loaded.config.stack_ring_bytes as usize,
            has_more: false,
        })
    }

    /// Sleeps until the timeout or until a ring fills; returns at once if the last batch left
    /// records.
    pub(crate) fn wait(&self, timeout: Duration) {
        if self.has_more {
            return;
        }
        let rings = std::iter::once(&self.records).chain(&self.stacks);
        let mut waits: Vec<_> = rings
            .map(|ring| libc::pollfd { fd: ring.epoll_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let timeout = timeout.as_millis().try_into().unwrap_or(i32::MAX);
        // An interrupted wait just ends early.
        // SAFETY: the list has the stated number of entries and outlives the call. The
        // descriptors belong to the rings, which self owns.
        unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, timeout) };
    }

    /// The next batch of records.
    pub(crate) fn drain_records(&mut self) -> Vec<Record> {
        self.batch.borrow_mut().record_bytes = BATCH_BYTES;
        self.batch.borrow_mut().stack_bytes = self.stack_ring_bytes;
        let _ = self.records.consume_raw();
        // After the calls: a stack is sent before its call, so the stacks of all calls that were
        // read are read with them. Reading the size of the ring covers everything in it by then.
        let _ = self.stacks.as_ref().map(RingBuffer::consume_raw);
        let mut batch = self.batch.borrow_mut();
        self.has_more = batch.record_bytes == 0;
        // The next batch is likely to be as long.
        let next = Vec::with_capacity(batch.records.len());
        std::mem::replace(&mut batch.records, next)
    }

    /// Returns whether the last batch emptied the ring.
    pub(crate) const fn is_drained(&self) -> bool {
        !self.has_more
    }

    /// Returns the position in the ring up to which records were written.
    pub(crate) fn written(&self) -> u64 {
        // SAFETY: the ring is one of `records`, which lives through the call.
        self.first().map_or(0, |ring| unsafe { libbpf_sys::ring__producer_pos(ring) })
    }

    /// Returns whether all records up to a position were read. A record that is still being written blocks
    /// those after it, so an unfilled batch does not imply this.
    pub(crate) fn has_read(&self, position: u64) -> bool {
        // SAFETY: the ring is one of `records`, which lives through the call.
        let read = |ring| unsafe { libbpf_sys::ring__consumer_pos(ring) } >= position;
        self.first().is_none_or(read)
    }

    fn first(&self) -> Option<*const libbpf_sys::ring> {
        // SAFETY: libbpf checks the index and returns null where there is no such ring.
        let ring =
            unsafe { libbpf_sys::ring_buffer__ring(self.records.as_libbpf_object().as_ptr(), 0) };
        (!ring.is_null()).then_some(ring.cast_const())
    }

    /// Returns the number of batches after which everything now in the ring was read.
    pub(crate) const fn batches(&self) -> usize {
        self.record_ring_bytes / BATCH_BYTES + 1
    }

    /// Returns the stacks that were read with the last batch of records.
    pub(crate) fn drain_stacks(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.batch.borrow_mut().stacks)
    }

    /// Returns the number of records since the last call that could not be decoded; any is a bug.
    pub(crate) fn drain_decode_errors(&mut self) -> u64 {
        std::mem::take(&mut self.batch.borrow_mut().decode_errors)
    }
}

fn open(
    loaded: &LoadedObject,
    name: &'static str,
    each: impl FnMut(&[u8]) -> i32 + 'static,
) -> Result<RingBuffer<'static>, Error> {
    let failed = |error: libbpf_rs::Error| Error::Ring { ring: name, cause: error.into() };
    let map = loaded.map(name)?;
    let mut builder = RingBufferBuilder::new();
    builder.add(&map, each).map_err(failed)?;
    builder.build().map_err(failed)
}

fn on_record(batch: &Rc<RefCell<RecordBatch>>, objects: bool) -> impl FnMut(&[u8]) -> i32 + use<> {
    let batch = Rc::clone(batch);
    move |bytes| {
        let mut batch = batch.borrow_mut();
        let RecordBatch { records, decode_errors, .. } = &mut *batch;
        decode_all(bytes, objects, records, decode_errors);
        consume(&mut batch.record_bytes, bytes.len())
    }
}

fn on_stack(batch: &Rc<RefCell<RecordBatch>>) -> impl FnMut(&[u8]) -> i32 + use<> {
    let batch = Rc::clone(batch);
    move |bytes| {
        let mut batch = batch.borrow_mut();
        match read(bytes) {
            Some(stack) => batch.stacks.push(stack),
            None => batch.decode_errors += 1,
        }
        consume(&mut batch.stack_bytes, bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_batch_stops_the_reader() {
        let mut remaining = 300;
        assert_eq!([128, 128, 128].map(|bytes| consume(&mut remaining, bytes)), [0, 0, STOP]);
        assert_eq!(remaining, 0);
    }
}
