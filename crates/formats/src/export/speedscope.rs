//! Files for speedscope: for each process one profile of the memory that was never freed, and one
//! of all allocated memory.

use std::io::{self, Write};

use engine::analysis::groups::{Group, GroupTable};
use engine::analysis::{GroupKey, MemoryScope};
use engine::model::{AllocationChange, Frame, FrameId, Pid};
use hashbrown::HashMap;
use serde::Serialize;

use super::format_writer::FormatWriter;
use crate::import::collecting_sink::FileInfo;
use crate::report::analysis::frames::function;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Schema that viewers check for.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Maximum number of characters of a frame's name.
const MAX_NAME_CHARS: usize = 1024;

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'a str,
    exporter: &'a str,
    name: &'a str,
    #[serde(rename = "activeProfileIndex")]
    active: u32,
    profiles: Vec<Profile>,
    shared: SharedFrames,
}

#[derive(Serialize)]
struct SharedFrames {
    frames: Vec<FrameJson>,
}

#[derive(Serialize)]
struct FrameJson {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    #[serde(rename = "type")]
    of: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes allocations as speedscope profiles.
pub struct SpeedscopeWriter<'a> {
    out: &'a mut dyn Write,
    name: String,
    groups: GroupTable,
}

impl<'a> SpeedscopeWriter<'a> {
    /// Creates an empty profile. `name` is the name of the file in the viewer.
    pub fn new(out: &'a mut dyn Write, scope: MemoryScope, name: &str) -> Self {
        Self { out, name: sanitize(name).into_owned(), groups: GroupTable::new(scope) }
    }
}

impl FormatWriter for SpeedscopeWriter<'_> {
    fn change(&mut self, change: &AllocationChange, _: &FileInfo) -> io::Result<()> {
        self.groups.observe(change);
        Ok(())
    }

    fn finish(self: Box<Self>, info: &FileInfo) -> io::Result<Vec<String>> {
        let scope = self.groups.scope();
        let counted = self.groups.iter().filter(|group| scope.counts(group.key.kind));
        let groups: Vec<Group> = counted.collect();
        let mut pids: Vec<Pid> = groups.iter().map(|group| group.key.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut frames = FrameTable::default();
        let mut profiles = Vec::new();
        for pid in pids {
            let own: Vec<&Group> = groups.iter().filter(|group| group.key.pid == pid).collect();
            let process = match info.processes.get(&pid) {
                Some(name) => format!("{} ({pid})", sanitize(name)),
                None if pid.0 == 0 => "the program".to_owned(),
                None => format!("process {pid}"),
            };
            let never_freed = |group: &Group| group.never_freed().bytes;
            let allocated = |group: &Group| group.allocated.bytes;
            profiles.extend(frames.profile(
                format!("{process}: never freed"),
                &own,
                never_freed,
                info,
            ));
            profiles.extend(frames.profile(format!("{process}: allocated"), &own, allocated, info));
        }
        let file = File {
            schema: SCHEMA,
            exporter: concat!("vramscope ", env!("CARGO_PKG_VERSION")),
            name: &self.name,
            active: 0,
            profiles,
            shared: SharedFrames { frames: frames.list },
        };
        let notes = if file.profiles.is_empty() {
            vec!["the file has no device memory: the profile is empty".to_owned()]
        } else {
            Vec::new()
        };
        serde_json::to_writer(&mut *self.out, &file)?;
        writeln!(self.out)?;
        self.out.flush()?;
        Ok(notes)
    }
}

/// Frames by index in the list.
#[derive(Default)]
struct FrameTable {
    list: Vec<FrameJson>,
    known: HashMap<FrameId, usize>,
    synthetic: HashMap<String, usize>,
}

impl FrameTable {
    /// Returns a profile of one process; none if it has no samples.
    fn profile(
        &mut self,
        name: String,
        groups: &[&Group],
        weight: impl Fn(&Group) -> u64,
        info: &FileInfo,
    ) -> Option<Profile> {
        let (mut samples, mut weights, mut sum) = (Vec::new(), Vec::new(), 0_u64);
        for group in groups {
            let weight = weight(group);
            if weight == 0 {
                continue;
            }
            samples.push(self.stack(&group.key, info));
            weights.push(weight);
            sum = sum.saturating_add(weight);
        }
        (!samples.is_empty()).then_some(Profile {
            of: "sampled",
            name,
            unit: "bytes",
            start_value: 0,
            end_value: sum,
            samples,
            weights,
        })
    }

    /// Returns the device and the kind, then the stack, outermost frame first.
    fn stack(&mut self, group: &GroupKey, info: &FileInfo) -> Vec<usize> {
        let device = group.device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string());
        let mut stack = vec![self.synthetic(format!("{device} {}", group.kind))];
        let ids = group.site.map(|site| info.stacks.ids(site)).unwrap_or_default();
        if ids.is_empty() {
            stack.push(self.synthetic("(no call stack)".to_owned()));
        }
        for id in ids.iter().rev() {
            if let Some(frame) = info.stacks.get(*id) {
                stack.push(self.frame(*id, frame));
            }
        }
        stack
    }

    fn synthetic(&mut self, name: String) -> usize {
        if let Some(known) = self.synthetic.get(&name) {
            return *known;
        }
        self.list.push(FrameJson { name: name.clone(), file: None, line: None });
        self.synthetic.insert(name, self.list.len() - 1);
        self.list.len() - 1
    }

    fn frame(&mut self, id: FrameId, frame: &Frame) -> usize {
        if let Some(known) = self.known.get(&id) {
            return *known;
        }
        let clean = |text: &str| sanitize_up_to(text, MAX_NAME_CHARS).into_owned();
        let name = clean(&function(frame));
        let file = frame.file.as_deref().or(frame.module.as_deref()).map(clean);
        let line = Some(frame.line).filter(|line| *line > 0 && frame.file.is_some());
        self.list.push(FrameJson { name, file, line });
        self.known.insert(id, self.list.len() - 1);
        self.list.len() - 1
    }
}
