//! Deletes captures that programs and contexts left open when they ended.
//!
//! The probes do not know which streams these were, so the entries stay in the map. The owner in their
//! keys is never used again, so deleting them cannot harm a capture that begins meanwhile.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::load::bpf_object::{LoadedObject, map_error};
use super::read::map_reader::read_all;
use crate::error::Error;
use crate::wire::{self, CaptureKey, GraphState};

/// The map of captures, and the counter of owners at the last deletion.
pub(crate) struct LeftCaptures {
    streams: MapHandle,
    states: MapHandle,
    ended: u64,
}

impl LeftCaptures {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        let [streams, states] = [loaded.map("capturing_streams")?, loaded.map("graph_states")?];
        Ok(Self { streams, states, ended: 0 })
    }

    /// Deletes the captures of ended owners. Reads the map only if more of them have `ended` than at
    /// the last call.
    pub(crate) fn delete(&mut self, ended: u64) -> Result<(), Error> {
        if ended == self.ended {
            return Ok(());
        }
        for (key, _) in read_all(&self.streams)? {
            let Some(CaptureKey { pid, owner, .. }) = wire::parse(&key) else { continue };
            let state = self.states.lookup(&pid.to_ne_bytes(), MapFlags::ANY);
            let state = state.map_err(map_error("graph_states"))?;
            let current = state.and_then(|state| wire::parse::<GraphState>(&state));
            if current.is_none_or(|current| current.id != owner) {
                // An entry that does not exist needs no deletion.
                let _ = self.streams.delete(&key);
            }
        }
        self.ended = ended;
        Ok(())
    }
}
