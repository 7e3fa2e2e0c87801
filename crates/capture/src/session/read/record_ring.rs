//! Reads the BPF ring buffers in batches of bounded size.

use super::super::load::bpf_object::LoadedObject;
use super::ring::Ring;
use crate::decode::Record;
use crate::error::Error;
use crate::stacks::{StackRecord, read};

/// Maximum bytes of records per batch: 8000 calls. Batches queue up behind a slow consumer, so
/// their size bounds its memory.
const BATCH_BYTES: usize = 1 << 20;

pub(crate) struct RecordRing {
    pub(crate) records: Ring,
    pub(crate) stacks: Option<Ring>,
    stack_batch: Vec<StackRecord>,
    decode_errors: u64,
    record_ring_bytes: usize,
    stack_ring_bytes: usize,
    /// The last batch left records in the ring.
    has_more: bool,
    /// The last batch had records.
    is_busy: bool,
}

impl RecordRing {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        let stacks = loaded.config.stacks.is_enabled();
        Ok(Self {
            records: open(loaded, "records")?,
            stacks: stacks.then(|| open(loaded, "stack_records")).transpose()?,
            stack_batch: Vec::new(),
            decode_errors: 0,
            record_ring_bytes: loaded.config.ring_bytes as usize,
            stack_ring_bytes: loaded.config.stack_ring_bytes as usize,
            has_more: false,
            is_busy: false,
        })
    }

    /// The next batch of records.
    pub(crate) fn drain_records(&mut self) -> Result<Vec<Record>, Error> {
        let (mut records, mut decode_errors) = (Vec::new(), 0);
        let consumed = self.records.consume(BATCH_BYTES, |bytes| match Record::parse(bytes) {
            Ok(record) => records.push(record),
            Err(_) => decode_errors += 1,
        });
        self.has_more = consumed.map_err(|cause| ring_error("records", cause))?;
        // After the calls: a stack is sent before its call, so the stacks of all calls that were
        // read are read with them. Reading the size of the ring covers everything in it by then.
        let (stacks, stack_bytes) = (&mut self.stack_batch, self.stack_ring_bytes);
        if let Some(ring) = &mut self.stacks {
            let consumed = ring.consume(stack_bytes, |bytes| match read(bytes) {
                Some(stack) => stacks.push(stack),
                None => decode_errors += 1,
            });
            consumed.map_err(|cause| ring_error("stack_records", cause))?;
        }
        self.is_busy = !records.is_empty() || !stacks.is_empty();
        self.decode_errors += decode_errors;
        Ok(records)
    }

    /// Returns whether the last batch emptied the ring.
    pub(crate) const fn is_drained(&self) -> bool {
        !self.has_more
    }

    /// Returns whether the last batch had records.
    pub(crate) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Returns whether there are records, complete or not.
    pub(crate) fn has_unread(&self) -> bool {
        let mut rings = std::iter::once(&self.records).chain(&self.stacks);
        rings.any(|ring| ring.written() != ring.position())
    }

    /// Returns the number of batches after which everything now in the ring was read.
    pub(crate) const fn batches(&self) -> usize {
        self.record_ring_bytes / BATCH_BYTES + 1
    }

    /// Returns the stacks that were read with the last batch of records.
    pub(crate) fn drain_stacks(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.stack_batch)
    }

    /// Returns the number of records since the last call that could not be decoded; any is a bug.
    pub(crate) fn drain_decode_errors(&mut self) -> u64 {
        std::mem::take(&mut self.decode_errors)
    }
}

fn open(loaded: &LoadedObject, name: &'static str) -> Result<Ring, Error> {
    Ring::open(loaded.map(name)?).map_err(|cause| ring_error(name, cause))
}

/// Returns the error of a ring that cannot be mapped or waited for.
pub(in crate::session) fn ring_error(ring: &'static str, cause: std::io::Error) -> Error {
    Error::Ring { ring, cause: libbpf_rs::Error::from(cause).into() }
}
