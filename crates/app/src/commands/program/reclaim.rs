//! `vramscope reclaim`: makes a program free GPU memory through its registered functions.

use anyhow::Result;
use engine::model::Pid;
use formats::report::view::compact_size;
use formats::sanitize::sanitize;
use serde_json::json;

use crate::io::output;
use crate::live::program_socket::ProgramSocket;
use crate::{Outcome, cli};

/// Runs the verb. Fails with status 1 if no function is registered, or if one failed.
pub(crate) fn run(options: &cli::ProgramArgs) -> Result<Outcome> {
    let program = ProgramSocket::find(Pid(options.pid))?;
    let live = || -> Result<Option<u64>> {
        Ok(program.live()?.and_then(|live| live["live_bytes"].as_u64()))
    };
    let before = live()?;
    let answer = program.reclaim()?;
    let after = live()?;
    let freed = before.zip(after).map(|(before, after)| before.saturating_sub(after));
    let callbacks = answer["callbacks"].as_array().cloned().unwrap_or_default();
    let report = json!({
        "pid": options.pid,
        "callbacks": callbacks,
        "live_before_bytes": before,
        "live_after_bytes": after,
        "freed_bytes": freed,
    });
    options.format.print(&report, |out, _| {
        for callback in &callbacks {
            let name = sanitize(callback["name"].as_str().unwrap_or_default()).into_owned();
            match callback["error"].as_str() {
                Some(error) => writeln!(out, "{name}: failed: {}", sanitize(error))?,
                None => writeln!(out, "{name}: {} s", callback["seconds"])?,
            }
        }
        let Some((freed, after)) = freed.zip(after) else {
            let unknown = "freed memory is unknown: the program does not run under `vramscope run`";
            return Ok(writeln!(out, "{unknown}")?);
        };
        let (freed, after) = (compact_size(freed), compact_size(after));
        Ok(writeln!(out, "freed {freed} of GPU memory; {after} live")?)
    })?;
    if callbacks.is_empty() {
        output::log("no function is registered; see vramscope.on_memory_pressure");
    }
    let failed = callbacks.is_empty() || callbacks.iter().any(|one| !one["error"].is_null());
    Ok(if failed { Outcome::Findings } else { Outcome::Success })
}
