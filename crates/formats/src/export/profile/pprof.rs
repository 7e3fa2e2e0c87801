//! Heap profiles for `pprof`: a gzipped message with the same four values as Go's.

use std::collections::HashMap;
use std::io::{self, Write};

use engine::model::{Frame, FrameId, StackTable};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::proto::{Function, Label, Line, Location, Mapping, Profile as Proto, ValueType};
use super::{Profile, ProfileSample, ProfileUnit, ProfileValue, proto};
use crate::report::analysis::frames::function;
use crate::sanitize::sanitize;

/// Values of each sample, in order.
const VALUES: [(&str, &str, ProfileValue, ProfileUnit); 4] = [
    ("alloc_objects", "count", ProfileValue::Allocated, ProfileUnit::Objects),
    ("alloc_space", "bytes", ProfileValue::Allocated, ProfileUnit::Bytes),
    ("inuse_objects", "count", ProfileValue::InUse, ProfileUnit::Objects),
    ("inuse_space", "bytes", ProfileValue::InUse, ProfileUnit::Bytes),
];

/// Writes the profile.
pub fn pprof(out: &mut dyn Write, profile: &Profile<'_>) -> io::Result<()> {
    let mut builder = PprofBuilder::new(profile.title);
    for sample in profile.samples {
        builder.add_sample(profile, sample);
    }
    builder.write(out)
}

/// A label of a sample.
pub(super) enum LabelValue<'a> {
    Text(&'static str, &'a str),
    Number(&'static str, i64),
    /// A number that may be 0, written as text because Go's pprof ignores a numeric label of 0.
    Ordinal(&'static str, u16),
}

/// A profile in progress: every item has an id and is written once.
#[derive(Default)]
pub(super) struct PprofBuilder {
    pub(super) proto: Proto,
    texts: HashMap<String, i64>,
    mappings: HashMap<i64, u64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<FrameId, u64>,
    synthetic: HashMap<&'static str, u64>,
}

impl PprofBuilder {
    pub(super) fn new(title: &str) -> Self {
        let mut builder = Self::default();
        builder.text("");
        for (name, unit, ..) in VALUES {
            let value = ValueType { kind: builder.text(name), unit: builder.text(unit) };
            builder.proto.sample_type.push(value);
        }
        builder.proto.default_sample_type = builder.text("inuse_space");
        let comment = builder.text(title);
        builder.proto.comment.push(comment);
        builder
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut gzip = GzEncoder::new(out, Compression::default());
        gzip.write_all(&self.proto.encode_to_vec())?;
        gzip.finish().map(|_| ())
    }

    fn add_sample(&mut self, profile: &Profile<'_>, sample: &ProfileSample) {
        let group = sample.key;
        let stack = group.site.map_or(&[][..], |site| profile.stacks.ids(site));
        let process = profile.process(group.pid);
        let mut tags = vec![LabelValue::Number("pid", i64::from(group.pid.0))];
        tags.extend(group.device.map(|device| LabelValue::Ordinal("device", device.0)));
        tags.push(LabelValue::Text("kind", group.kind.name()));
        tags.push(LabelValue::Text("process", &process));
        self.sample(profile.stacks, stack, "(no call stack)", sample, &tags);
    }

    /// Adds a stack with its values; `instead` replaces an empty stack. Samples without a value
    /// greater than 0 are omitted.
    pub(super) fn sample(
        &mut self,
        stacks: &StackTable,
        stack: &[FrameId],
        instead: &'static str,
        amounts: &ProfileSample,
        tags: &[LabelValue<'_>],
    ) {
        let amount = |value, unit| i64::try_from(amounts.amount(value, unit)).unwrap_or(i64::MAX);
        let value: Vec<i64> =
            VALUES.iter().map(|(.., value, unit)| amount(*value, *unit)).collect();
        if value.iter().all(|value| *value == 0) {
            return;
        }
        let known = stack.iter().filter_map(|id| Some((*id, stacks.get(*id)?)));
        let mut location_id: Vec<u64> = known.map(|(id, frame)| self.location(id, frame)).collect();
        if location_id.is_empty() {
            location_id.push(self.synthetic(instead));
        }
        // Unknown values are not labels: pids of files without pids, empty names.
        let is_known = |label: &Label| label.text != 0 || label.number != 0;
        let label = tags.iter().map(|tag| self.label(tag)).filter(is_known).collect();
        self.proto.sample.push(proto::Sample { location_id, value, label });
    }

    fn label(&mut self, tag: &LabelValue<'_>) -> Label {
        match *tag {
            LabelValue::Text(key, text) => {
                Label { key: self.text(key), text: self.text(text), number: 0 }
            }
            LabelValue::Number(key, number) => Label { key: self.text(key), text: 0, number },
            LabelValue::Ordinal(key, number) => {
                Label { key: self.text(key), text: self.text(&number.to_string()), number: 0 }
            }
        }
    }

    /// Returns the number of a text. The text is sanitized here.
    pub(super) fn text(&mut self, text: &str) -> i64 {
        let text = sanitize(text);
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
        let name = self.text(&function(frame));
        let filename = self.text(frame.file.as_deref().unwrap_or_default());
        let line = Line { function_id: self.function(name, filename), line: i64::from(frame.line) };
        let id = self.proto.location.len() as u64 + 1;
        self.proto.location.push(Location { id, mapping_id, line: vec![line] });
        id
    }

    fn synthetic(&mut self, name: &'static str) -> u64 {
        if let Some(number) = self.synthetic.get(name) {
            return *number;
        }
        let frame = Frame { function: name.into(), ..Frame::default() };
        let number = self.add_location(0, &frame);
        self.synthetic.insert(name, number);
        number
    }

    fn mapping(&mut self, module: &str) -> u64 {
        let filename = self.text(module);
        let next = self.proto.mapping.len() as u64 + 1;
        let id = *self.mappings.entry(filename).or_insert(next);
        if id == next {
            // Symbols are already resolved: pprof should not look for them.
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
            // No `system_name`: if both are equal, Go's pprof treats the name as a linker symbol
            // and removes the parts in brackets.
            self.proto.function.push(Function { id, name, filename });
        }
        id
    }
}
