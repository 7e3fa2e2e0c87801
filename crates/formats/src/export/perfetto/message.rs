//! Subset of Perfetto's protobuf messages that is written, by field number.

use std::io::{self, Write};

use prost::Message;

messages! {
    /// A packet of a trace.
    Packet {
        clocks("6", message, optional): Option<ClockSnapshot>,
        timestamp("8", uint64, optional): Option<u64>,
        sequence("10", uint32): u32,
        event("11", message, optional): Option<Event>,
        interned("12", message, optional): Option<Interned>,
        flags("13", uint32, optional): Option<u32>,
        track("60", message, optional): Option<Track>,
    }
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

messages! {
    /// Values of several clocks at the same time.
    ClockSnapshot {
        clocks("1", message, repeated): Vec<Clock>,
    }

    /// The value of one clock.
    Clock {
        id("1", uint32): u32,
        timestamp("2", uint64): u64,
    }
}

/// The wall clock, and the default clock of packets.
pub(super) const REALTIME: u32 = 1;
pub(super) const BOOTTIME: u32 = 6;

messages! {
    /// A track of the viewer.
    Track {
        uuid("1", uint64): u64,
        name("2", string, optional): Option<String>,
        process("3", message, optional): Option<Process>,
        parent("5", uint64, optional): Option<u64>,
        counter("8", message, optional): Option<Counter>,
    }

    /// A process.
    Process {
        pid("1", int32, optional): Option<i32>,
        name("6", string, optional): Option<String>,
    }

    /// Properties of a counter track.
    Counter {
        unit("3", int32): i32,
    }
}

/// `UNIT_SIZE_BYTES`.
pub(super) const BYTES: i32 = 3;

messages! {
    /// An event on a track.
    Event {
        annotations("4", message, repeated): Vec<Annotation>,
        event_type("9", int32): i32,
        name("10", uint64, optional): Option<u64>,
        track("11", uint64): u64,
        value("30", int64, optional): Option<i64>,
    }
}

/// Start of a slice.
pub(super) const BEGIN: i32 = 1;
/// End of a slice.
pub(super) const END: i32 = 2;
/// Value of a counter.
pub(super) const COUNTER: i32 = 4;

messages! {
    /// A named value of an event.
    Annotation {
        name("1", uint64): u64,
        number("3", uint64, optional): Option<u64>,
        pointer("7", uint64, optional): Option<u64>,
        text("17", uint64, optional): Option<u64>,
    }

    /// Interned strings.
    Interned {
        event_names("2", message, repeated): Vec<Text>,
        annotation_names("3", message, repeated): Vec<Text>,
        texts("29", message, repeated): Vec<Text>,
    }

    /// A string and its id.
    Text {
        id("1", uint64): u64,
        text("2", string): String,
    }
}
