//! Writes the last events as a recording. It starts in the middle of a trace: every process is
//! marked as started before it, and the header says so.

use std::fs::File;
use std::io;

use engine::event::{Event, What};
use engine::ids::{Pid, Tid};
use engine::units::Moment;
use formats::export::Names;
use formats::recording::{Header, Writer};

use super::job::Job;
use crate::host;

/// Writes the file. Returns the number of recorded events.
pub(crate) fn write(file: File, job: &Job) -> io::Result<u64> {
    let names = &job.published.names;
    let mut writer = Writer::new(file, &header(job, names), names.function)?;
    let first = job.window.events().map(|event| event.at).next().unwrap_or(job.at);
    for event in &job.window.before {
        writer.event(event)?;
    }
    for facts in &job.sites {
        let what = What::Site(facts.clone());
        writer.event(&Event { pid: Pid(0), tid: Tid(0), entered: first, at: first, what })?;
    }
    let mut count = 0;
    let mut last = Moment(0);
    for event in job.window.events() {
        last = last.max(event.at);
        writer.event(event)?;
        count += 1;
    }
    writer.finish(last.max(job.published.snapshot.at))?;
    Ok(count)
}

fn header(job: &Job, names: &Names) -> Header {
    let target = match job.window.dropped {
        0 => "every process, since the agent started".to_owned(),
        dropped => format!(
            "every process, from the middle of a trace: {dropped} earlier events are not included"
        ),
    };
    Header {
        version: env!("CARGO_PKG_VERSION").into(),
        hostname: host::name(),
        kernel: host::kernel(),
        target,
        work: false,
        clock: names.clock.clone(),
        gpus: names.gpus.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use engine::event::{Free, FreeBy, ProcessFacts, SiteFacts};
    use engine::ids::{GpuId, Key, SiteId};
    use engine::ledger::Ledger;
    use engine::metrics::Figures;
    use engine::snapshot::{Snapshot, View};
    use engine::stack::Frame;
    use formats::WallClock;
    use formats::export::incident::Trigger;
    use formats::recording::{Functions, Reader, Row};

    use super::super::made::{allocate, event};
    use super::super::recent::Recent;
    use super::*;
    use crate::serve::Published;
    use crate::serve::budget::Standing;

    fn job(ring: &Recent) -> Job {
        let clock = WallClock::fixed(Moment(0), 1_700_000_000);
        let names =
            Names { clock, function: |_| "", recorded: Functions::default(), gpus: Vec::new() };
        let frames = [Frame { function: "main".into(), ..Frame::default() }].into();
        Job {
            number: 1,
            trigger: Trigger::Asked,
            at: Moment(50_000),
            requester: None,
            limit: None,
            call: None,
            device: None,
            gpu: None,
            holders: Vec::new(),
            cached: None,
            published: Arc::new(Published {
                sequence: 1,
                snapshot: Snapshot { at: Moment(60_000), ..Snapshot::default() },
                names: Arc::new(names),
                metrics: Figures::default(),
                own: Standing::default(),
            }),
            published_at: Instant::now(),
            window: ring.window(),
            sites: vec![SiteFacts { site: SiteId(3), frames }],
            skipped: 0,
        }
    }

    #[test]
    fn recording_has_the_last_events_and_marks_its_start() {
        let mut ring = Recent::new(2048, 1 << 30);
        let facts = ProcessFacts { start: 9, uid: 5, name: "old".into(), before_trace: false };
        ring.push(&event(1, What::Process(facts)));
        ring.push(&event(2, What::Gpus([Some(GpuId(0))].into())));
        for at in 10..20_000 {
            ring.push(&allocate(at));
            if at % 2 == 0 {
                let free = Free { key: Key::address(at - 1), by: FreeBy::Free, stream: None };
                ring.push(&event(at, What::Free(free)));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recent.arrows");
        let job = job(&ring);
        let count = write(File::create(&path).unwrap(), &job).unwrap();
        let mut reader = Reader::open(&path, |_| None).unwrap();
        let (mut events, mut target, mut ledger) = (Vec::new(), String::new(), Ledger::new());
        while let Some(row) = reader.next_row().unwrap() {
            match row {
                Row::Event(event) => {
                    ledger.apply(&event);
                    events.push(event);
                }
                Row::About { key, value } if &*key == "target" => target = value.into(),
                _ => {}
            }
        }
        assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
        let expected: Vec<Event> = job.window.events().cloned().collect();
        assert_eq!(count, expected.len() as u64);
        assert_eq!(events[..2], job.window.before);
        assert!(matches!(&events[2].what, What::Site(facts) if *facts == job.sites[0]));
        assert_eq!(events[3..], expected);
        assert!(target.contains("from the middle of a trace"), "{target}");
        let snapshot = ledger.snapshot(Moment(60_000), &View::default());
        let process = &snapshot.processes[0];
        assert!(process.before_trace && !snapshot.certainty.exact());
        assert_eq!((&*process.name, process.devices[0].gpu), ("old", Some(GpuId(0))));
        assert_eq!(&*snapshot.sites[0].frames[0].function, "main");
    }
}
