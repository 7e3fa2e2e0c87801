//! `vramscope mark`: labels a time in all running traces.

use std::time::Duration;

use anyhow::{Result, bail};
use capture::{MarkRequest, MarkScope, MarkSubject, send_mark};
use engine::model::{MarkKind, Pid};
use formats::sanitize::sanitize;

use crate::io::output;
use crate::{Outcome, cli};

/// Time for the answers of all traces: an idle one reads every 250 milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the verb. Fails if no trace accepts the mark.
pub(crate) fn run(options: &cli::MarkArgs) -> Result<Outcome> {
    let kind = match (options.begin, options.end) {
        (true, _) => MarkKind::Begin,
        (_, true) => MarkKind::End,
        _ => MarkKind::Point,
    };
    let pids = options.pid.iter().map(|pid| MarkScope::Process(Pid(*pid)));
    let scopes = if options.pid.is_empty() { vec![MarkScope::All] } else { pids.collect() };
    for scope in scopes {
        let subject = MarkSubject::Time(kind);
        let request = MarkRequest { subject, scope, label: options.label.clone() };
        let answers = send_mark(&request, options.tracer, TIMEOUT)?;
        if answers.accepted == 0 {
            match (answers.refused.first(), scope) {
                (Some(reason), _) => bail!("mark: {}", sanitize(reason)),
                (None, MarkScope::Process(pid)) if answers.not_traced > 0 => {
                    bail!("process {pid}: no running trace includes it")
                }
                _ => bail!(
                    "mark: nothing is traced on this host; start `vramscope trace`, `record` or \
                     `serve` before"
                ),
            }
        }
        for reason in &answers.refused {
            output::log(&format!("another trace refused the mark: {}", sanitize(reason)));
        }
    }
    Ok(Outcome::Success)
}
