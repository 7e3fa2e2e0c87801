//! Files for speedscope.

use std::collections::BTreeSet;
use std::io::{self, Write};

use engine::analysis::GroupKey;
use engine::model::{Frame, FrameId, Pid, StackTable};
use hashbrown::HashMap;
use serde::Serialize;

use super::{Profile, ProfileUnit, ProfileValue};
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
    profiles: Vec<SampledProfile>,
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
struct SampledProfile {
    #[serde(rename = "type")]
    of: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes two profiles for each process: its memory in use, which `in_use` names, and all that it
/// allocated; with `value` only one of them. Returns whether there is any.
pub fn speedscope(
    out: &mut dyn Write,
    profile: &Profile<'_>,
    in_use: &str,
    value: Option<ProfileValue>,
    unit: ProfileUnit,
) -> io::Result<bool> {
    let pids: BTreeSet<Pid> = profile.samples.iter().map(|sample| sample.key.pid).collect();
    let values = [(ProfileValue::InUse, in_use), (ProfileValue::Allocated, "allocated")];
    let mut frames = FrameTable::default();
    let mut profiles = Vec::new();
    for pid in pids {
        let process = profile.process(pid);
        for (of, name) in values.iter().filter(|(of, _)| value.is_none_or(|value| value == *of)) {
            let own = profile.samples.iter().filter(|sample| sample.key.pid == pid);
            let weights = own.map(|sample| (&sample.key, sample.amount(*of, unit)));
            let name = format!("{process}: {name}");
            profiles.extend(frames.profile(name, unit, weights, profile.stacks));
        }
    }
    let file = File {
        schema: SCHEMA,
        exporter: concat!("vramscope ", env!("CARGO_PKG_VERSION")),
        name: &sanitize(profile.title),
        active: 0,
        profiles,
        shared: SharedFrames { frames: frames.list },
    };
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)?;
    out.flush()?;
    Ok(!file.profiles.is_empty())
}

/// Frames by index in the list.
#[derive(Default)]
struct FrameTable {
    list: Vec<FrameJson>,
    known: HashMap<FrameId, usize>,
    synthetic: HashMap<String, usize>,
}

impl FrameTable {
    /// Returns a profile of the sites and their weights; none if all weights are 0.
    fn profile<'a>(
        &mut self,
        name: String,
        unit: ProfileUnit,
        sites: impl Iterator<Item = (&'a GroupKey, u64)>,
        stacks: &StackTable,
    ) -> Option<SampledProfile> {
        let (mut samples, mut weights, mut sum) = (Vec::new(), Vec::new(), 0_u64);
        for (key, weight) in sites.filter(|(_, weight)| *weight > 0) {
            samples.push(self.stack(key, stacks));
            weights.push(weight);
            sum = sum.saturating_add(weight);
        }
        (!samples.is_empty()).then_some(SampledProfile {
            of: "sampled",
            name,
            unit: match unit {
                ProfileUnit::Bytes => "bytes",
                ProfileUnit::Objects => "none",
            },
            start_value: 0,
            end_value: sum,
            samples,
            weights,
        })
    }

    /// Returns the device and the kind, then the stack, outermost frame first.
    fn stack(&mut self, group: &GroupKey, stacks: &StackTable) -> Vec<usize> {
        let device = group.device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string());
        let mut stack = vec![self.synthetic(format!("{device} {}", group.kind))];
        let ids = group.site.map(|site| stacks.ids(site)).unwrap_or_default();
        if ids.is_empty() {
            stack.push(self.synthetic("(no call stack)".to_owned()));
        }
        for id in ids.iter().rev() {
            if let Some(frame) = stacks.get(*id) {
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
