//! `vramscope doctor`: checks whether this host can trace, what is missing and how to get it.

use std::io::Write;

use anyhow::Result;
use capture::hooks::HOOKS;
use capture::libraries::{DriverLibrary, installed, scan_all};
use capture::plan::{self, AttachMode};
use capture::session::probe_host;
use formats::sanitize::sanitize;

use crate::Outcome;
use crate::io::output;

/// Runs the verb.
pub(crate) fn run() -> Result<Outcome> {
    let mut results = output::results();
    let out = &mut *results.writer;
    let host = probe_host();
    writeln!(out, "kernel     Linux {} on {}", host.release, host.machine)?;
    writeln!(out, "privileges {}", privileges(&host))?;
    writeln!(out, "types      {}", if host.btf { "BTF available" } else { "no BTF" })?;
    if let Some(mode) = &host.lockdown {
        writeln!(out, "lockdown   {mode}")?;
    }
    writeln!(out, "probes")?;
    for attach_mode in AttachMode::ALL {
        let outcome = host.attach_modes.iter().find(|(mode, _)| *mode == attach_mode);
        let verdict = match outcome {
            None => "not tried".to_owned(),
            Some((_, Ok(()))) => format!("works: {}", attach_mode.about()),
            Some((_, Err(reason))) => format!("no: {reason}"),
        };
        writeln!(out, "  {:<17}{verdict}", attach_mode.name())?;
    }
    drivers(out)?;
    let outcome = match plan::plan(&host) {
        Ok(plan) => {
            writeln!(out, "plan       attach mode `{}`{}", plan.attach_mode, state(&plan))?;
            for warning in &plan.warnings {
                writeln!(out, "warning    {warning}")?;
            }
            writeln!(out, "verdict    tracing works here")?;
            Outcome::Success
        }
        Err(error) => {
            writeln!(out, "verdict    {error}")?;
            Outcome::Findings
        }
    };
    results.finish()?;
    Ok(outcome)
}

fn privileges(host: &capture::plan::host_info::HostInfo) -> String {
    let caps = &host.capabilities;
    let missing = caps.missing_capabilities();
    let load = if caps.bpf && caps.perfmon { "can" } else { "cannot" };
    let inspect = if caps.ptrace && caps.read_files { "can" } else { "cannot" };
    let without = if missing.is_empty() {
        String::new()
    } else {
        format!(" (without {})", missing.join(", "))
    };
    format!(
        "user {}: {load} load BPF programs, {inspect} inspect processes of other users{without}",
        caps.uid
    )
}

fn state(plan: &plan::AttachPlan) -> &'static str {
    if plan.task_storage {
        ", per-thread state in task storage"
    } else {
        ", per-thread state in a BPF map"
    }
}

fn drivers(out: &mut dyn Write) -> Result<()> {
    let mut seen = Vec::new();
    let in_use = scan_all();
    let candidates = installed().into_iter().map(|path| (path.clone(), path)).chain(
        in_use.iter().filter_map(|mapping| {
            let path = mapping.paths_to_open().into_iter().find(|path| path.exists())?;
            Some((path, mapping.path.clone()))
        }),
    );
    for (path, name) in candidates {
        let label = sanitize(&name.to_string_lossy()).into_owned();
        match DriverLibrary::open(&path, &name) {
            Ok(image) if seen.contains(&image.identity) => {}
            Ok(image) => {
                let fast = image.functions.iter().filter(|f| f.point.emulated).count();
                let users = in_use.iter().filter(|mapping| mapping.path == name).count();
                writeln!(
                    out,
                    "driver     {label}: {} of {} hooked functions, {fast} with emulated probe \
                     sites, used by {users} processes",
                    image.functions.len(),
                    HOOKS.len(),
                )?;
                seen.push(image.identity);
            }
            Err(error) => writeln!(out, "driver     {}", sanitize(&error.to_string()))?,
        }
    }
    if seen.is_empty() {
        writeln!(
            out,
            "driver     no libcuda.so.1 installed or in use; `trace` waits for one, \
             `--driver PATH` names one"
        )?;
    }
    Ok(())
}
