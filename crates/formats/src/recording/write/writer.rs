//! Writes a recording. Each flush is one complete message of the stream, so that a killed tracer
//! loses at most the rows since the last one.

use std::collections::HashMap;
use std::io::{self, Write};

use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, MetadataVersion};
use arrow_schema::{ArrowError, SchemaRef};
use engine::model::{Event, EventKind, Frame, Nanos, Timestamp};

use super::super::schema::{Column, schema};
use super::batch_builder::BatchBuilder;
use super::encode::{self, FunctionName};
use crate::WallClock;
use crate::export::{CaptureSource, GpuLabel};

/// Maximum number of rows of a batch.
const MAX_BATCH_ROWS: usize = 16_384;

/// Maximum size of the texts and lists of a batch; one row may exceed it.
const MAX_BATCH_TEXT_BYTES: usize = 4 << 20;

/// Maximum age of an unwritten row.
const FLUSH_INTERVAL: Nanos = Nanos::from_millis(1000);

/// Maximum age if only ticks wait, so that an idle trace writes almost nothing.
const IDLE_FLUSH_INTERVAL: Nanos = Nanos::from_millis(30_000);

/// Maximum number of cached frame ids; a frame that is dropped from the cache is written again.
const MAX_CACHED_FRAMES: usize = 1 << 18;

/// Metadata of a recording.
#[derive(Clone, Debug)]
pub struct RecordingHeader {
    /// Version of vramscope.
    pub version: String,
    /// Host name.
    pub hostname: String,
    /// Linux kernel.
    pub kernel: String,
    /// Description of the traced processes.
    pub target: String,
    /// Whether launches and copies are also counted.
    pub activity: bool,
    /// Clocks.
    pub clock: WallClock,
    /// GPUs.
    pub gpus: Vec<GpuLabel>,
    /// How calls are captured; `None`: by probes.
    pub source: Option<CaptureSource>,
}

/// Writes rows to a file or pipe. After an error nothing more should be written: the output is
/// complete up to [`RecordingWriter::bytes`].
pub struct RecordingWriter<W> {
    out: W,
    schema: SchemaRef,
    /// Messages are built in memory and written at once.
    stream: StreamWriter<Vec<u8>>,
    batch: BatchBuilder,
    function: FunctionName,
    /// Time of the oldest waiting row, and whether it is urgent: more than ticks wait.
    waiting: Option<(Timestamp, bool)>,
    /// Ids of frames that were written.
    frames: HashMap<Frame, u32>,
    next_frame: u32,
    events: u64,
    lost: u64,
    bytes: u64,
}

impl<W: Write> RecordingWriter<W> {
    /// Writes the schema and the header. `function` returns the names of driver functions.
    pub fn new(out: W, header: &RecordingHeader, function: FunctionName) -> io::Result<Self> {
        let schema = SchemaRef::new(schema());
        let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5)
            .and_then(|options| options.try_with_compression(Some(CompressionType::ZSTD)))
            .and_then(|options| options.try_with_compression_level(Some(1)))
            .map_err(io_error)?;
        let stream = StreamWriter::try_new_with_options(Vec::new(), &schema, options);
        let mut writer = Self {
            out,
            schema,
            stream: stream.map_err(io_error)?,
            batch: BatchBuilder::new(),
            function,
            waiting: None,
            frames: HashMap::new(),
            next_frame: 0,
            events: 0,
            lost: 0,
            bytes: 0,
        };
        writer.header(header);
        writer.flush()?;
        Ok(writer)
    }

    fn header(&mut self, header: &RecordingHeader) {
        let batch = &mut self.batch;
        for (key, value) in [
            ("vramscope", header.version.as_str()),
            ("hostname", &header.hostname),
            ("kernel", &header.kernel),
            ("target", &header.target),
            ("kernels", if header.activity { "yes" } else { "no" }),
        ] {
            batch.row("metadata");
            batch.text(Column::Name, key);
            batch.text(Column::Value, value);
        }
        if let Some(source) = header.source {
            batch.row("metadata");
            batch.text(Column::Name, "source");
            batch.text(Column::Value, source.name());
        }
        batch.row("clock");
        batch.number(Column::TimeNs, header.clock.start().0);
        batch.time(Column::WallTime, header.clock.utc_nanos());
        batch.text(Column::TimeZone, header.clock.zone());
        batch.code(Column::UtcOffsetSeconds, header.clock.offset());
        for gpu in &header.gpus {
            batch.row("gpu");
            batch.number(Column::Gpu, u64::from(gpu.id.0));
            batch.text(Column::Name, gpu.name.as_str());
            batch.text(Column::Uuid, gpu.uuid.as_str());
            batch.number(Column::Bytes, gpu.total_bytes);
        }
    }

    /// Adds an event. A site may be defined before or after the events that refer to it.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        if matches!(event.kind, EventKind::DeviceHolders(_)) {
            return Ok(());
        }
        if let EventKind::Site(site_frames) = &event.kind {
            let numbers = self.frames(&site_frames.frames)?;
            encode::event(&mut self.batch, event, self.function);
            self.batch.number(Column::SiteId, u64::from(site_frames.site.0));
            self.batch.numbers(Column::FrameIds, numbers.into_iter().map(Some));
        } else {
            encode::event(&mut self.batch, event, self.function);
        }
        self.events += 1;
        if let EventKind::Lost(lost) = &event.kind {
            let records = [lost.allocations, lost.frees, lost.failures, lost.other];
            self.lost = records.iter().fold(self.lost, |sum, count| sum.saturating_add(*count));
        }
        self.added(event.time, true)
    }

    /// Returns the ids of frames; new frames get an id and a row.
    fn frames(&mut self, frames: &[Frame]) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::with_capacity(frames.len());
        for frame in frames {
            if let Some(number) = self.frames.get(frame) {
                numbers.push(u64::from(*number));
                continue;
            }
            if self.frames.len() >= MAX_CACHED_FRAMES {
                self.frames.clear();
            }
            let number = self.next_frame;
            self.next_frame = number.saturating_add(1);
            self.frames.insert(frame.clone(), number);
            encode::frame(&mut self.batch, number, frame);
            self.make_room()?;
            numbers.push(u64::from(number));
        }
        Ok(numbers)
    }

    /// Records that a report is made at this time, so that a replay makes it as well.
    pub fn tick(&mut self, at: Timestamp) -> io::Result<()> {
        self.batch.row("report");
        self.batch.number(Column::TimeNs, at.0);
        self.added(at, false)
    }

    /// Writes rows that have waited for a second. To be called several times per second.
    pub fn flush_due(&mut self, now: Timestamp) -> io::Result<()> {
        let Some((since, urgent)) = self.waiting else { return Ok(()) };
        let max_age = if urgent { FLUSH_INTERVAL } else { IDLE_FLUSH_INTERVAL };
        if now - since >= max_age { self.flush() } else { Ok(()) }
    }

    /// Records the time of the last report; nothing may follow.
    pub fn finish(&mut self, at: Timestamp) -> io::Result<()> {
        self.batch.row("end");
        self.batch.number(Column::TimeNs, at.0);
        self.encode()?;
        self.stream.finish().map_err(io_error)?;
        self.put()
    }

    /// Returns the number of events so far.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Returns the number of lost records so far.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of bytes written, in complete messages.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the output.
    pub const fn out(&self) -> &W {
        &self.out
    }

    /// Returns the output and drops the writer.
    pub fn into_out(self) -> W {
        self.out
    }

    fn added(&mut self, at: Timestamp, urgent: bool) -> io::Result<()> {
        self.waiting = Some(match self.waiting {
            None => (at, urgent),
            // Waiting ticks are not urgent, but events are.
            Some((_, false)) if urgent => (at, true),
            Some(waiting) => waiting,
        });
        self.make_room()
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.batch.rows() >= MAX_BATCH_ROWS || self.batch.loose_bytes >= MAX_BATCH_TEXT_BYTES {
            return self.flush();
        }
        Ok(())
    }

    /// Writes all waiting rows as one message.
    pub fn flush(&mut self) -> io::Result<()> {
        self.encode()?;
        self.put()
    }

    fn encode(&mut self) -> io::Result<()> {
        self.waiting = None;
        if self.batch.rows() > 0 {
            let batch = self.batch.finish(SchemaRef::clone(&self.schema)).map_err(io_error)?;
            self.stream.write(&batch).map_err(io_error)?;
        }
        Ok(())
    }

    fn put(&mut self) -> io::Result<()> {
        let message = self.stream.get_mut();
        self.out.write_all(message)?;
        self.out.flush()?;
        self.bytes += message.len() as u64;
        message.clear();
        Ok(())
    }
}

fn io_error(error: ArrowError) -> io::Error {
    io::Error::other(error)
}
