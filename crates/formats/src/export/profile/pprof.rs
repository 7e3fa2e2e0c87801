//! A heap profile as `pprof` reads it: a gzipped message with the same four values as Go's.

use std::collections::HashMap;
use std::io::{self, Write};

use engine::stack::{Frame, FrameId};
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
    let mut made = Maker::default();
    made.text("");
    for (name, unit, ..) in VALUES {
        let value = ValueType { kind: made.text(name), unit: made.text(unit) };
        made.proto.sample_type.push(value);
    }
    made.proto.default_sample_type = made.text("inuse_space");
    let comment = made.text(profile.title);
    made.proto.comment.push(comment);
    for sample in profile.samples {
        made.sample(profile, sample);
    }
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&made.proto.encode_to_vec())?;
    gzip.finish().map(|_| ())
}

/// A profile in the making: everything in it has a number, and is there once.
#[derive(Default)]
struct Maker {
    proto: Proto,
    texts: HashMap<String, i64>,
    mappings: HashMap<i64, u64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<FrameId, u64>,
    without_stack: Option<u64>,
}

impl Maker {
    fn sample(&mut self, profile: &Profile<'_>, sample: &Sample) {
        let value: Vec<i64> = VALUES
            .iter()
            .map(|(.., value, unit)| {
                i64::try_from(sample.figure(*value, *unit)).unwrap_or(i64::MAX)
            })
            .collect();
        if value.iter().all(|value| *value == 0) {
            return;
        }
        let ids = sample.place.site.map_or(&[][..], |site| profile.stacks.ids(site));
        let mut location_id: Vec<u64> = ids
            .iter()
            .filter_map(|id| Some(self.location(*id, profile.stacks.get(*id)?)))
            .collect();
        if location_id.is_empty() {
            location_id.push(self.without_stack());
        }
        let label = self.labels(profile, sample);
        self.proto.sample.push(proto::Sample { location_id, value, label });
    }

    fn labels(&mut self, profile: &Profile<'_>, sample: &Sample) -> Vec<Label> {
        let place = sample.place;
        let mut number = |key, number| Label { key: self.text(key), text: 0, number };
        let mut labels = vec![number("pid", i64::from(place.pid.0))];
        labels.extend(place.device.map(|device| number("device", i64::from(device.0))));
        let mut text =
            |key, text: &str| Label { key: self.text(key), text: self.text(text), number: 0 };
        labels.push(text("kind", place.kind.name()));
        labels.push(text("process", &profile.process(place.pid)));
        labels
    }

    /// The number of a text, which is made fit for a terminal.
    fn text(&mut self, text: &str) -> i64 {
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

    fn without_stack(&mut self) -> u64 {
        if let Some(number) = self.without_stack {
            return number;
        }
        let frame = Frame { function: "(no call stack)".into(), ..Frame::default() };
        let number = self.add_location(0, &frame);
        self.without_stack = Some(number);
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
            self.proto.function.push(Function { id, name, system_name: name, filename });
        }
        id
    }
}
