//! The engine thread of a live verb: events into the ledger, reports out of it.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Result, anyhow};
use capture::gpus::Gpu;
use capture::hooks::function_name;
use capture::session::Notice;
use engine::ledger::Ledger;
use engine::snapshot::{Snapshot, View};
use formats::WallClock;
use formats::export::text::Style;
use formats::export::{GpuName, Names, json, text, work};
use formats::plain::plain;

use super::ended::Ended;
use crate::output::{self, Results};
use crate::pipeline::{Live, Message};

/// How reports look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// What reports are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// Memory, and work where it is counted.
    Memory,
    /// Launches and copies alone.
    Work,
}

/// The ledger and what is needed to report it.
pub(crate) struct LiveReport {
    ledger: Ledger,
    view: View,
    subject: Subject,
    format: Format,
    names: Names,
    style: Style,
    out: Results,
    ended: Ended,
    /// Where events are written down.
    pub(crate) events: Option<BufWriter<File>>,
    /// Tell which libraries are watched.
    pub(crate) verbose: bool,
}

impl LiveReport {
    pub(crate) fn new(
        live: &Live,
        view: View,
        subject: Subject,
        format: Format,
        out: Results,
    ) -> Self {
        let clock = WallClock::now(capture::monotonic());
        let ledger = Ledger::new();
        Self {
            ledger: if live.counts_work { ledger.following_work() } else { ledger },
            view,
            subject,
            format,
            names: Names { clock, function: function_name, gpus: gpu_names(&live.gpus) },
            style: out.style,
            out,
            ended: Ended::default(),
            events: None,
            verbose: true,
        }
    }

    /// Applies a message of the capture thread.
    pub(crate) fn take(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Events(events) => {
                for event in &events {
                    if let Some(file) = &mut self.events {
                        serde_json::to_writer(&mut *file, event)?;
                        file.write_all(b"\n")?;
                    }
                    self.ledger.apply(event);
                }
            }
            Message::Notice(notice) if self.verbose || notice.is_trouble() => tell(&notice),
            Message::Notice(_) => {}
            Message::Failed(error) => return Err(anyhow!(error)),
        }
        Ok(())
    }

    /// Reports what is live now.
    pub(crate) fn report(&mut self) -> Result<()> {
        let snapshot = self.ledger.snapshot(capture::monotonic(), &self.view);
        self.print(&snapshot)?;
        self.ended.remember(snapshot);
        Ok(())
    }

    /// Detaches the probes and makes the last report, which is the whole story: processes that
    /// ended on the way are in it again.
    pub(crate) fn finish(mut self, live: Live) -> Result<Snapshot> {
        for message in live.finish() {
            self.take(message)?;
        }
        let mut last = self.ledger.snapshot(capture::monotonic(), &self.view);
        self.ended.recall_into(&mut last);
        self.print(&last)?;
        let unlisted = self.ended.dropped() + self.ledger.unlisted_ends();
        if unlisted > 0 {
            output::complain(&format!(
                "{unlisted} processes that ended are not listed in the last report"
            ));
        }
        Ok(last)
    }

    fn print(&mut self, snapshot: &Snapshot) -> Result<()> {
        let out = &mut self.out.writer;
        match (self.subject, self.format) {
            (Subject::Memory, Format::Json) => {
                writeln!(out, "{}", json::line(snapshot, &self.names)?)?;
            }
            (Subject::Memory, Format::Text) => {
                text::report(out, snapshot, &self.names, self.style)?;
            }
            (Subject::Work, Format::Json) => {
                writeln!(out, "{}", work::json::line(snapshot, &self.names)?)?;
            }
            (Subject::Work, Format::Text) => {
                work::text::report(out, snapshot, &self.names, self.style)?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

fn gpu_names(gpus: &[Gpu]) -> Vec<GpuName> {
    gpus.iter()
        .map(|gpu| GpuName {
            id: gpu.id,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            total_bytes: gpu.total_bytes,
        })
        .collect()
}

fn tell(notice: &Notice) {
    output::complain(&match notice {
        Notice::Attached { path, functions, stepped } => {
            let slow = match stepped {
                0 => String::new(),
                n => format!(" ({n} of them at the slow, single-stepped place)"),
            };
            format!("watching {functions} functions of {}{slow}", shown(path))
        }
        Notice::NotAttached { reason } => format!("not watched: {}", plain(reason)),
        Notice::NoDriver => "no CUDA driver (libcuda.so.1) is installed or in use here yet: \
             waiting for a process that brings one; `--driver PATH` names one by hand"
            .to_owned(),
        Notice::SlowWatch { reason } => format!(
            "cannot be told of new copies of the driver ({reason}); looking every few seconds"
        ),
        Notice::Released { path } => format!("nobody uses {} any more: let go", shown(path)),
    });
}

fn shown(path: &std::path::Path) -> String {
    plain(&path.to_string_lossy()).into_owned()
}
