//! The kernel ring: bytes out of it, events into a batch.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{RingBuffer, RingBufferBuilder};

use super::object::Loaded;
use crate::decode::{Decoded, decode, object};
use crate::error::Error;
use crate::stacks::{StackRecord, read};

#[derive(Default)]
struct Batch {
    records: Vec<Decoded>,
    stacks: Vec<StackRecord>,
    unreadable: u64,
}

pub(crate) struct Ring {
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Batch>>,
}

impl Ring {
    pub(crate) fn new(loaded: &Loaded) -> Result<Self, Error> {
        let load = |source| Error::Load { source };
        let batch = Rc::new(RefCell::new(Batch::default()));
        let sink = Rc::clone(&batch);
        let map = loaded.map("records")?;
        let mut builder = RingBufferBuilder::new();
        let objects = loaded.knobs.objects;
        let on_record = move |bytes: &[u8]| {
            let mut batch = sink.borrow_mut();
            match decode(bytes) {
                Ok(Some(record)) => batch.records.push(record),
                Ok(None) => {}
                Err(_) => batch.unreadable += 1,
            }
            // After what the call means to memory: a stream's context is known by then.
            batch.records.extend(objects.then(|| object(bytes)).flatten());
            0
        };
        builder.add(&map, on_record).map_err(load)?;
        // After the calls: a stack is sent before its call, so whatever calls were read, their
        // stacks are read with them.
        let stacks = loaded.knobs.stacks.are_taken().then(|| loaded.map("stack_records"));
        let sink = Rc::clone(&batch);
        let on_stack = move |bytes: &[u8]| {
            let mut batch = sink.borrow_mut();
            match read(bytes) {
                Some(stack) => batch.stacks.push(stack),
                None => batch.unreadable += 1,
            }
            0
        };
        let stacks = stacks.transpose()?;
        if let Some(stacks) = &stacks {
            builder.add(stacks, on_stack).map_err(load)?;
        }
        Ok(Self { ring: builder.build().map_err(load)?, batch })
    }

    /// Sleeps until the time is over or the ring fills; consumes nothing on time-out.
    pub(crate) fn wait(&self, timeout: Duration) {
        // An interrupted wait is a short one.
        let _ = self.ring.poll_raw(timeout);
    }

    /// Everything that is in the ring, and what an earlier wait-up took out.
    pub(crate) fn take(&mut self) -> Vec<Decoded> {
        let _ = self.ring.consume_raw();
        let mut batch = self.batch.borrow_mut();
        // The next batch is likely to be as long.
        let next = Vec::with_capacity(batch.records.len());
        std::mem::replace(&mut batch.records, next)
    }

    /// Stacks that came with the records taken last, or before them.
    pub(crate) fn take_stacks(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.batch.borrow_mut().stacks)
    }

    /// Records since the last call that this version could not read; any is a bug.
    pub(crate) fn take_unreadable(&mut self) -> u64 {
        std::mem::take(&mut self.batch.borrow_mut().unreadable)
    }
}
