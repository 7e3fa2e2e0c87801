//! Writes the last events as a recording. It starts in the middle of a trace: every process is
//! marked as started before it, and the header says so.

use std::fs::File;
use std::io;

use engine::model::{Event, EventKind, Pid, Tid, Timestamp};
use formats::export::ReportContext;
use formats::recording::{RecordingHeader, RecordingWriter};

use super::super::job::IncidentJob;
use formats::hostname;

/// Writes the file. Returns the number of recorded events.
pub(crate) fn write(file: File, job: &IncidentJob) -> io::Result<u64> {
    let context = &job.published.context;
    let mut writer = RecordingWriter::new(file, &header(job, context), context.function)?;
    let first = job.window.events().map(|event| event.time).next().unwrap_or(job.at);
    for event in &job.window.before {
        writer.event(event)?;
    }
    for frames in &job.sites {
        let kind = EventKind::Site(frames.clone());
        writer.event(&Event { pid: Pid(0), tid: Tid(0), entry_time: first, time: first, kind })?;
    }
    let mut count = 0;
    let mut last = Timestamp(0);
    for event in job.window.events() {
        last = last.max(event.time);
        writer.event(event)?;
        count += 1;
    }
    writer.finish(last.max(job.published.snapshot.at))?;
    Ok(count)
}

fn header(job: &IncidentJob, context: &ReportContext) -> RecordingHeader {
    let target = match job.window.dropped {
        0 => "every process, since the agent started".to_owned(),
        dropped => format!(
            "every process, from the middle of a trace: {dropped} earlier events are not included"
        ),
    };
    RecordingHeader {
        source: None,
        version: env!("CARGO_PKG_VERSION").into(),
        hostname: hostname::name(),
        kernel: hostname::kernel(),
        target,
        activity: false,
        clock: context.clock.clone(),
        gpus: context.gpus.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use engine::ledger::Ledger;
    use engine::metrics::MetricSet;
    use engine::model::{
        AllocationKey, Frame, Free, FreeFunction, GpuId, ProcessInfo, SiteFrames, SiteId,
    };
    use engine::snapshot::{Snapshot, SnapshotOptions};
    use formats::recording::{RecordingReader, RecordingRow};
    use formats::report::incident::Trigger;

    use super::*;
    use crate::exporters::published;
    use crate::incidents::collect::event_ring::EventRing;
    use crate::incidents::collect::test_events::{allocate, event};

    fn job(ring: &EventRing) -> IncidentJob {
        let snapshot = Snapshot { at: Timestamp(60_000), ..Snapshot::default() };
        let frames = [Frame { function: "main".into(), ..Frame::default() }].into();
        IncidentJob {
            number: 1,
            trigger: Trigger::Manual,
            at: Timestamp(50_000),
            requester: None,
            limit: None,
            call: None,
            device: None,
            gpu: None,
            holders: Vec::new(),
            cached: None,
            published: Arc::new(published(1, snapshot, MetricSet::default())),
            published_at: Instant::now(),
            window: ring.window(),
            sites: vec![SiteFrames { site: SiteId(3), frames }],
            skipped: 0,
        }
    }

    #[test]
    fn recording_has_the_last_events_and_marks_its_start() {
        let mut ring = EventRing::new(2048, 1 << 30);
        let info = ProcessInfo { start: 9, uid: 5, name: "old".into(), before_trace: false };
        ring.push(&event(1, EventKind::Process(info)));
        ring.push(&event(2, EventKind::Gpus([Some(GpuId(0))].into())));
        for at in 10..20_000 {
            ring.push(&allocate(at));
            if at % 2 == 0 {
                let free = Free {
                    key: AllocationKey::address(at - 1),
                    by: FreeFunction::Free,
                    stream: None,
                };
                ring.push(&event(at, EventKind::Free(free)));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recent.arrows");
        let job = job(&ring);
        let count = write(File::create(&path).unwrap(), &job).unwrap();
        let mut reader = RecordingReader::open(&path, |_| None).unwrap();
        let (mut events, mut target, mut ledger) = (Vec::new(), String::new(), Ledger::new());
        while let Some(row) = reader.next_row().unwrap() {
            match row {
                RecordingRow::Event(event) => {
                    ledger.apply(&event);
                    events.push(event);
                }
                RecordingRow::About { key, value } if &*key == "target" => target = value.into(),
                _ => {}
            }
        }
        assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
        let expected: Vec<Event> = job.window.events().cloned().collect();
        assert_eq!(count, expected.len() as u64);
        assert_eq!(events[..2], job.window.before);
        assert!(matches!(&events[2].kind, EventKind::Site(frames) if *frames == job.sites[0]));
        assert_eq!(events[3..], expected);
        assert!(target.contains("from the middle of a trace"), "{target}");
        let snapshot = ledger.snapshot(Timestamp(60_000), &SnapshotOptions::default());
        let process = &snapshot.processes[0];
        assert!(process.before_trace && !snapshot.uncertainty.exact());
        assert_eq!((&*process.name, process.devices[0].gpu), ("old", Some(GpuId(0))));
        assert_eq!(&*snapshot.sites[0].frames[0].function, "main");
    }
}
