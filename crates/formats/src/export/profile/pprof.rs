//! A heap profile as `pprof` reads it: a gzipped message with the same four values as Go's.

use std::collections::HashMap;
use std::io::{self, Write};

use engine::stack::{Frame, FrameId, Stacks};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::proto::{Function, Label, Line, Location, Mapping, Profile as Proto, ValueType};
use super::{Profile, Sample, Unit, Value, proto};
use crate::plain::plain;

/// The values of each sample, in their order.
const VALUES: [(&str, &str, Value, Unit); 4] = [
    ("alloc_objects", "count", Value::Allocated, Unit::Objects),
    ("alloc_space", "bytes", Value::Allocated, Unit::Bytes),
    ("inuse_objects", "count", Value::InUse, Unit::Objects),
    ("inuse_space", "bytes", Value::InUse, Unit::Bytes),
];

/// Writes the profile.
pub fn pprof(out: &mut dyn Write, profile: &Profile<'_>) -> io::Result<()> {
    let mut made = Maker::new(profile.title);
    for sample in profile.samples {
        made.place(profile, sample);
    }
    made.write(out)
}

/// What a sample is told apart by.
pub(super) enum Tag<'a> {
    Text(&'static str, &'a str),
    Number(&'static str, i64),
    /// A number that may be 0. Go's pprof takes a number 0 for none at all, so that it is told as text.
    Ordinal(&'static str, u16),
}

/// A profile in the making: everything in it has a number, and is there once.
#[derive(Default)]
pub(super) struct Maker {
    pub(super) proto: Proto,
    texts: HashMap<String, i64>,
    mappings: HashMap<i64, u64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<FrameId, u64>,
    remarks: HashMap<&'static str, u64>,
}

impl Maker {
    pub(super) fn new(title: &str) -> Self {
        let mut made = Self::default();
        made.text("");
        for (name, unit, ..) in VALUES {
            let value = ValueType { kind: made.text(name), unit: made.text(unit) };
            made.proto.sample_type.push(value);
        }
        made.proto.default_sample_type = made.text("inuse_space");
        let comment = made.text(title);
        made.proto.comment.push(comment);
        made
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut gzip = GzEncoder::new(out, Compression::default());
        gzip.write_all(&self.proto.encode_to_vec())?;
        gzip.finish().map(|_| ())
    }

    fn place(&mut self, profile: &Profile<'_>, sample: &Sample) {
        let place = sample.place;
        let stack = place.site.map_or(&[][..], |site| profile.stacks.ids(site));
        let process = profile.process(place.pid);
        let mut tags = vec![Tag::Number("pid", i64::from(place.pid.0))];
        tags.extend(place.device.map(|device| Tag::Ordinal("device", device.0)));
        tags.push(Tag::Text("kind", place.kind.name()));
        tags.push(Tag::Text("process", &process));
        self.sample(profile.stacks, stack, "(no call stack)", sample, &tags);
    }

    /// A stack with its figures; `instead` stands where there is no frame. One that has no figure is
    /// left out.
    pub(super) fn sample(
        &mut self,
        stacks: &Stacks,
        stack: &[FrameId],
        instead: &'static str,
        figures: &Sample,
        tags: &[Tag<'_>],
    ) {
        let figure = |value, unit| i64::try_from(figures.figure(value, unit)).unwrap_or(i64::MAX);
        let value: Vec<i64> =
            VALUES.iter().map(|(.., value, unit)| figure(*value, *unit)).collect();
        if value.iter().all(|value| *value == 0) {
            return;
        }
        let known = stack.iter().filter_map(|id| Some((*id, stacks.get(*id)?)));
        let mut location_id: Vec<u64> = known.map(|(id, frame)| self.location(id, frame)).collect();
        if location_id.is_empty() {
            location_id.push(self.remark(instead));
        }
        // What is not known is no label: pids of files that have none, names that are empty.
        let says = |label: &Label| label.text != 0 || label.number != 0;
        let label = tags.iter().map(|tag| self.label(tag)).filter(says).collect();
        self.proto.sample.push(proto::Sample { location_id, value, label });
    }

    fn label(&mut self, tag: &Tag<'_>) -> Label {
        match *tag {
            Tag::Text(key, text) => Label { key: self.text(key), text: self.text(text), number: 0 },
            Tag::Number(key, number) => Label { key: self.text(key), text: 0, number },
            Tag::Ordinal(key, number) => {
                Label { key: self.text(key), text: self.text(&number.to_string()), number: 0 }
            }
        }
    }

    /// The number of a text, which is made fit for a terminal.
    pub(super) fn text(&mut self, text: &str) -> i64 {
        let text = plain(text);
        if let Some(number) = self.texts.get(&*text) {
            return *number;
        }
        let number = i64::try_from(self.proto.string_table.len()).unwrap_or(i64::MAX);
        self.proto.string_table.push(text.clone().into_owned());
        self.texts.insert(text.into_owned(), number);
        number
    }

    fn location(&mut self, id: FrameId, frame: &Frame) -> u64 {
        if let Some(number) = self.locations.get(&id) {
            return *number;
        }
        let mapping_id = frame.module.as_deref().map_or(0, |module| self.mapping(module));
        let number = self.add_location(mapping_id, frame);
        self.locations.insert(id, number);
        number
    }

    fn add_location(&mut self, mapping_id: u64, frame: &Frame) -> u64 {
        let name = match &*frame.function {
            "" => {
                let why = frame.unknown.map_or("not known", |unknown| unknown.reason());
                self.text(&format!("({why})"))
            }
            name => self.text(name),
        };
        let filename = self.text(frame.file.as_deref().unwrap_or_default());
        let line = Line { function_id: self.function(name, filename), line: i64::from(frame.line) };
        let id = self.proto.location.len() as u64 + 1;
        self.proto.location.push(Location { id, mapping_id, line: vec![line] });
        id
    }

    fn remark(&mut self, remark: &'static str) -> u64 {
        if let Some(number) = self.remarks.get(remark) {
            return *number;
        }
        let frame = Frame { function: remark.into(), ..Frame::default() };
        let number = self.add_location(0, &frame);
        self.remarks.insert(remark, number);
        number
    }

    fn mapping(&mut self, module: &str) -> u64 {
        let filename = self.text(module);
        let next = self.proto.mapping.len() as u64 + 1;
        let id = *self.mappings.entry(filename).or_insert(next);
        if id == next {
            // Names are told already: nobody should look for symbols again.
            let (has_functions, has_filenames, has_line_numbers) = (true, true, true);
            let new = Mapping { id, filename, has_functions, has_filenames, has_line_numbers };
            self.proto.mapping.push(new);
        }
        id
    }

    fn function(&mut self, name: i64, filename: i64) -> u64 {
        let next = self.proto.function.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            // No `system_name`: where both are the same, Go's pprof takes the name for one that a linker
            // knows, and cuts what is in brackets out of it.
            self.proto.function.push(Function { id, name, filename });
        }
        id
    }
}
