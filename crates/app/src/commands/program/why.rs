//! `vramscope why`: the Python references that keep GPU memory alive.

use std::io::Write;

use anyhow::Result;
use engine::model::Pid;
use formats::report::view::compact_size;
use formats::sanitize::sanitize;
use serde_json::{Value, json};

use crate::io::output;
use crate::live::program_socket::{ProgramSocket, SiteKeepers};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: &cli::ProgramArgs) -> Result<Outcome> {
    let (sites, search) = ProgramSocket::find(Pid(options.pid))?.keepers()?;
    let site = |site: &SiteKeepers| json!({ "leak": site.is_leak, "memory": site.memory, "kept_by": site.answer });
    let values: Vec<_> = sites.iter().map(site).collect();
    let report = json!({ "pid": options.pid, "sites": values, "search": search });
    options.format.print(&report, |out, _| {
        if sites.is_empty() {
            writeln!(out, "process {} has no live GPU memory of its own", options.pid)?;
        }
        sites.iter().try_for_each(|site| write_site(out, site))?;
        if search["complete"] == false {
            output::log("the search stopped at its limits: references may be missing");
        }
        Ok(())
    })?;
    Ok(Outcome::Success)
}

/// Writes a site and its keepers.
fn write_site(out: &mut dyn Write, site: &SiteKeepers) -> Result<()> {
    let text = |value: &Value| sanitize(value.as_str().unwrap_or_default()).into_owned();
    let memory = &site.memory;
    let bytes = compact_size(memory["bytes"].as_u64().unwrap_or(0));
    let (kind, location) = (text(&memory["kind"]), text(&memory["location"]));
    let label = if site.is_leak { "Leak" } else { "Live" };
    writeln!(out, "{label}: {bytes} in {} ({kind}), {location}", memory["count"])?;
    writeln!(out, "  kept by {site}")?;
    for keeper in site.answer["keepers"].as_array().into_iter().flatten() {
        writeln!(out, "    {:>6}  {}", keeper["count"].to_string(), text(&keeper["path"]))?;
    }
    for (field, meaning) in [
        ("in_cycles", "unreachable reference cycles"),
        ("unknown", "no Python object: native code or a cache"),
    ] {
        let count = site.answer[field].as_u64().unwrap_or(0);
        if count > 0 {
            writeln!(out, "    {count:>6}  ({meaning})")?;
        }
    }
    Ok(())
}
