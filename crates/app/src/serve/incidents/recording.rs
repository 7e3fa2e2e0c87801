//! The last events as a recording. It begins in the middle of a trace, and says so: every process in
//! it was there before, and its header tells.

use std::fs::File;
use std::io;

use engine::event::{Event, What};
use engine::ids::{Pid, Tid};
use engine::units::Moment;
use formats::export::Names;
use formats::recording::{Header, Writer};

use super::host;
use super::job::Job;

/// Writes the file; says how many events of the trace are in it.
pub(crate) fn write(file: File, job: &Job) -> io::Result<u64> {
    let names = &job.published.names;
    let mut writer = Writer::new(file, &header(job, names), names.function)?;
    let first = job.excerpt.events().map(|event| event.at).next().unwrap_or(job.at);
    for event in &job.excerpt.before {
        writer.event(event)?;
    }
    for facts in &job.sites {
        let what = What::Site(facts.clone());
        writer.event(&Event { pid: Pid(0), tid: Tid(0), entered: first, at: first, what })?;
    }
    let mut count = 0;
    let mut last = Moment(0);
    for event in job.excerpt.events() {
        last = last.max(event.at);
        writer.event(event)?;
        count += 1;
    }
    writer.finish(last.max(job.published.snapshot.at))?;
    Ok(count)
}

fn header(job: &Job, names: &Names) -> Header {
    let fact = |path: &str| {
        std::fs::read_to_string(path).map_or_else(|_| String::new(), |text| text.trim().to_owned())
    };
    let target = match job.excerpt.forgotten {
        0 => "every process, since the agent began".to_owned(),
        forgotten => format!(
            "every process, from the middle of a trace: {forgotten} events before these are not here"
        ),
    };
    Header {
        version: env!("CARGO_PKG_VERSION").into(),
        hostname: host::name(),
        kernel: fact("/proc/sys/kernel/osrelease"),
        target,
        work: false,
        clock: names.clock.clone(),
        gpus: names.gpus.clone(),
    }
}
