//! Imports a file and prints sums as JSON: what is live at the end by site, and the peak. It
//! measures readers by themselves, without a report around them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use engine::cache::{PoolSums, Segment};
use engine::change::{Change, Turn};
use engine::ids::{DeviceId, Pid, SiteId};
use engine::stack::Stacks;
use engine::units::Moment;
use formats::import::{Sink, Warning};

#[derive(Default)]
struct Sums {
    stacks: Stacks,
    live: u64,
    peak: (u64, u64),
    sites: Vec<(u64, u64)>,
    changes: u64,
}

impl Sink for Sums {
    fn stacks(&mut self) -> &mut Stacks {
        &mut self.stacks
    }

    fn change(&mut self, change: &Change) {
        self.changes += 1;
        let site = change.site.map_or(0, |SiteId(id)| id as usize + 1);
        if site >= self.sites.len() {
            self.sites.resize(site + 1, (0, 0));
        }
        let Some(sum) = self.sites.get_mut(site) else { return };
        let device = change.kind.takes_device_memory();
        if change.what == Turn::Began {
            *sum = (sum.0 + change.bytes, sum.1 + 1);
            self.live += if device { change.bytes } else { 0 };
            if self.live > self.peak.0 {
                self.peak = (self.live, change.at.0);
            }
        } else {
            *sum = (sum.0.saturating_sub(change.bytes), sum.1.saturating_sub(1));
            self.live = self.live.saturating_sub(if device { change.bytes } else { 0 });
        }
    }

    fn process(&mut self, pid: Pid, name: &str) {
        eprintln!("process {pid}: {name:?}");
    }

    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        eprintln!("{device}: {name:?}, {total_bytes:?} bytes");
    }

    fn clock(&mut self, moment: Moment, utc_nanos: i64) {
        eprintln!("moment {} is {utc_nanos} ns after 1970", moment.0);
    }

    fn segment(&mut self, segment: Segment) {
        eprintln!("segment of {} bytes", segment.bytes);
    }

    fn pool(&mut self, pool: &PoolSums) {
        eprintln!("{pool:?}");
    }

    fn warn(&mut self, warning: Warning) {
        eprintln!("{} × {:?}", warning.count, warning.text);
    }
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: import FILE");
        return ExitCode::from(2);
    };
    let mut sums = Sums::default();
    match formats::import::open(Path::new(&path), &mut sums, &|_| None) {
        Ok(imported) => eprintln!("{imported:?}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    }
    let mut sites = BTreeMap::new();
    for (id, &(bytes, count)) in (0_u32..).zip(&sums.sites) {
        if count > 0 {
            let frames = id.checked_sub(1).map(|id| {
                sums.stacks.frames(SiteId(id)).map(|frame| frame.function.to_string()).collect()
            });
            let name: Vec<String> = frames.unwrap_or_default();
            let entry = sites.entry(name.join(" < ")).or_insert((0, 0));
            *entry = (entry.0 + bytes, entry.1 + count);
        }
    }
    let report = serde_json::json!({
        "changes": sums.changes, "live_bytes": sums.live,
        "peak_bytes": sums.peak.0, "peak_at": sums.peak.1, "live": sites,
    });
    println!("{report:#}");
    ExitCode::SUCCESS
}
