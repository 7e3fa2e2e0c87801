//! Subset of Perfetto's protobuf messages that is written, by field number.

use std::io::{self, Write};

use prost::Message;

/// A packet of a trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Packet {
    #[prost(message, optional, tag = "6")]
    pub(super) clocks: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(super) sequence: u32,
    #[prost(message, optional, tag = "11")]
    pub(super) event: Option<Event>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned: Option<Interned>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(super) track: Option<Track>,
}

/// `SEQ_INCREMENTAL_STATE_CLEARED`: interned data starts again with this packet.
pub(super) const CLEARED: u32 = 1;

/// `SEQ_NEEDS_INCREMENTAL_STATE`: the packet refers to interned data.
pub(super) const NEEDS_STATE: u32 = 2;

impl Packet {
    /// Writes the packet as a field of the trace, which is one message.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        // Field 1, length-delimited.
        out.write_all(&[0x0a])?;
        out.write_all(&self.encode_length_delimited_to_vec())
    }
}

/// Values of several clocks at the same time.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
}

/// The value of one clock.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, tag = "1")]
    pub(super) id: u32,
    #[prost(uint64, tag = "2")]
    pub(super) timestamp: u64,
}

/// The wall clock, and the default clock of packets.
pub(super) const REALTIME: u32 = 1;
pub(super) const BOOTTIME: u32 = 6;

/// A track of the viewer.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Track {
    #[prost(uint64, tag = "1")]
    pub(super) uuid: u64,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<Process>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<Counter>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) name: Option<String>,
}

/// Properties of a counter track.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Counter {
    #[prost(int32, tag = "3")]
    pub(super) unit: i32,
}

/// `UNIT_SIZE_BYTES`.
pub(super) const BYTES: i32 = 3;

/// An event on a track.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(message, repeated, tag = "4")]
    pub(super) annotations: Vec<Annotation>,
    #[prost(int32, tag = "9")]
    pub(super) event_type: i32,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub(super) track: u64,
    #[prost(int64, optional, tag = "30")]
    pub(super) value: Option<i64>,
}

/// Start of a slice.
pub(super) const BEGIN: i32 = 1;
/// End of a slice.
pub(super) const END: i32 = 2;
/// Value of a counter.
pub(super) const COUNTER: i32 = 4;

/// A named value of an event.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotation {
    #[prost(uint64, tag = "1")]
    pub(super) name: u64,
    #[prost(uint64, optional, tag = "3")]
    pub(super) number: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub(super) pointer: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) text: Option<u64>,
}

/// Interned strings.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Interned {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<Text>,
    #[prost(message, repeated, tag = "3")]
    pub(super) annotation_names: Vec<Text>,
    #[prost(message, repeated, tag = "29")]
    pub(super) texts: Vec<Text>,
}

/// A string and its id.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Text {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) text: String,
}
