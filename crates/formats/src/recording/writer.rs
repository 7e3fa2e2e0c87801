//! Writes a recording. Each flush is one whole message of the stream, so that a tracer that is killed
//! loses at most the rows since the last one.

use std::collections::HashMap;
use std::io::{self, Write};

use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, MetadataVersion};
use arrow_schema::{ArrowError, SchemaRef};
use engine::event::{Event, What};
use engine::stack::Frame;
use engine::units::{Moment, Nanos};

use super::encode::{self, FunctionName};
use super::schema::{Column, schema};
use super::sheet::Sheet;
use crate::WallClock;
use crate::export::GpuName;

/// Rows of a batch at most.
const ROWS: usize = 16_384;

/// Bytes of texts and lists of a batch at most; one row may go over it.
const LOOSE_BYTES: usize = 4 << 20;

/// How old a row gets before it is written.
const PATIENCE: Nanos = Nanos::from_millis(1000);

/// Ticks alone say nothing new: they wait this long, so that an idle trace writes next to nothing.
const IDLE_PATIENCE: Nanos = Nanos::from_millis(30_000);

/// Frames whose numbers are kept in mind; one that is forgotten is written again.
const FRAMES: usize = 1 << 18;

/// What a recording says of itself.
#[derive(Clone, Debug)]
pub struct Header {
    /// The version of the program.
    pub version: String,
    /// The machine.
    pub hostname: String,
    /// Its kernel.
    pub kernel: String,
    /// What is traced, in words.
    pub target: String,
    /// Launches and copies are counted, too.
    pub work: bool,
    /// The clocks.
    pub clock: WallClock,
    /// The GPUs.
    pub gpus: Vec<GpuName>,
}

/// Writes rows to a file or pipe. After an error nothing more should be written: what is there up
/// to [`Writer::bytes`] is whole.
pub struct Writer<W> {
    out: W,
    schema: SchemaRef,
    /// Messages are made in memory and written in one piece.
    stream: StreamWriter<Vec<u8>>,
    sheet: Sheet,
    function: FunctionName,
    /// When the oldest row that waits was noticed, and whether there is more than ticks.
    waiting: Option<(Moment, bool)>,
    /// The numbers of frames that were written.
    frames: HashMap<Frame, u32>,
    next_frame: u32,
    events: u64,
    lost: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the schema and the header. `function` names the driver functions of failed calls.
    pub fn new(out: W, header: &Header, function: FunctionName) -> io::Result<Self> {
        let schema = SchemaRef::new(schema());
        let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5)
            .and_then(|options| options.try_with_compression(Some(CompressionType::ZSTD)))
            .and_then(|options| options.try_with_compression_level(Some(1)))
            .map_err(no_arrow)?;
        let stream = StreamWriter::try_new_with_options(Vec::new(), &schema, options);
        let mut writer = Self {
            out,
            schema,
            stream: stream.map_err(no_arrow)?,
            sheet: Sheet::new(),
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

    fn header(&mut self, header: &Header) {
        let sheet = &mut self.sheet;
        for (key, value) in [
            ("vramscope", header.version.as_str()),
            ("hostname", &header.hostname),
            ("kernel", &header.kernel),
            ("target", &header.target),
            ("kernels", if header.work { "yes" } else { "no" }),
        ] {
            sheet.row("metadata");
            sheet.text(Column::Name, key);
            sheet.text(Column::Value, value);
        }
        sheet.row("clock");
        sheet.number(Column::TimeNs, header.clock.start().0);
        sheet.time(Column::WallTime, header.clock.utc_nanos());
        sheet.text(Column::TimeZone, header.clock.zone());
        sheet.code(Column::UtcOffsetSeconds, header.clock.offset());
        for gpu in &header.gpus {
            sheet.row("gpu");
            sheet.number(Column::Gpu, u64::from(gpu.id.0));
            sheet.text(Column::Name, gpu.name.as_str());
            sheet.text(Column::Uuid, gpu.uuid.as_str());
            sheet.number(Column::Bytes, gpu.total_bytes);
        }
    }

    /// Adds an event. What a site looks like may be told before or after the events that name it.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        if let What::Site(facts) = &event.what {
            let numbers = self.frames(&facts.frames)?;
            encode::event(&mut self.sheet, event, self.function);
            self.sheet.number(Column::SiteId, u64::from(facts.site.0));
            self.sheet.numbers(Column::FrameIds, numbers.into_iter().map(Some));
        } else {
            encode::event(&mut self.sheet, event, self.function);
        }
        self.events += 1;
        if let What::Lost(lost) = &event.what {
            let records = [lost.allocations, lost.frees, lost.failures, lost.other];
            self.lost = records.iter().fold(self.lost, |sum, count| sum.saturating_add(*count));
        }
        self.added(event.at, true)
    }

    /// The numbers of frames; those that have none yet get one, and a row.
    fn frames(&mut self, frames: &[Frame]) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::with_capacity(frames.len());
        for frame in frames {
            if let Some(number) = self.frames.get(frame) {
                numbers.push(u64::from(*number));
                continue;
            }
            if self.frames.len() >= FRAMES {
                self.frames.clear();
            }
            let number = self.next_frame;
            self.next_frame = number.saturating_add(1);
            self.frames.insert(frame.clone(), number);
            encode::frame(&mut self.sheet, number, frame);
            self.make_room()?;
            numbers.push(u64::from(number));
        }
        Ok(numbers)
    }

    /// A report is made at this moment: a replay makes it too.
    pub fn tick(&mut self, at: Moment) -> io::Result<()> {
        self.sheet.row("report");
        self.sheet.number(Column::TimeNs, at.0);
        self.added(at, false)
    }

    /// Writes what has waited for a second. To be called several times a second.
    pub fn flush_due(&mut self, now: Moment) -> io::Result<()> {
        match self.waiting {
            Some((since, news)) if now - since >= if news { PATIENCE } else { IDLE_PATIENCE } => {
                self.flush()
            }
            _ => Ok(()),
        }
    }

    /// The last report is made at this moment; nothing may follow.
    pub fn finish(&mut self, at: Moment) -> io::Result<()> {
        self.sheet.row("end");
        self.sheet.number(Column::TimeNs, at.0);
        self.encode()?;
        self.stream.finish().map_err(no_arrow)?;
        self.put()
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Records that the kernel could not deliver, by the events so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes that were written, in whole messages.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it writes to.
    pub const fn out(&self) -> &W {
        &self.out
    }

    /// Gives that back.
    pub fn into_out(self) -> W {
        self.out
    }

    fn added(&mut self, at: Moment, news: bool) -> io::Result<()> {
        self.waiting = Some(match self.waiting {
            None => (at, news),
            // Ticks that have waited are no reason to hurry, and news are.
            Some((_, false)) if news => (at, true),
            Some(waiting) => waiting,
        });
        self.make_room()
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.sheet.rows() >= ROWS || self.sheet.loose_bytes >= LOOSE_BYTES {
            return self.flush();
        }
        Ok(())
    }

    /// Writes all rows that wait, as one message.
    pub fn flush(&mut self) -> io::Result<()> {
        self.encode()?;
        self.put()
    }

    fn encode(&mut self) -> io::Result<()> {
        self.waiting = None;
        if self.sheet.rows() > 0 {
            let batch = self.sheet.finish(SchemaRef::clone(&self.schema)).map_err(no_arrow)?;
            self.stream.write(&batch).map_err(no_arrow)?;
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

fn no_arrow(error: ArrowError) -> io::Error {
    io::Error::other(error)
}
