//! The results of `doctor` as text.

use std::io::{self, Write};

use capture::plan::restrictions::Effect;

use super::checks::{AttachModeRow, Checks, Driver, Plan, Privileges};

/// Writes the results, one line each, and the verdict last.
pub(super) fn write(checks: &Checks, out: &mut dyn Write) -> io::Result<()> {
    let kernel = &checks.kernel;
    writeln!(out, "kernel     Linux {} on {}", kernel.release, kernel.machine)?;
    writeln!(out, "privileges {}", privileges(&checks.privileges))?;
    writeln!(out, "types      {}", if kernel.btf { "BTF available" } else { "no BTF" })?;
    for found in &checks.restrictions {
        writeln!(out, "security   {}: {}", found.name, found.message)?;
    }
    writeln!(out, "probes")?;
    for row in &checks.attach_modes {
        writeln!(out, "  {:<17}{}", row.name, attach_mode(row))?;
    }
    for driver in &checks.drivers {
        write_driver(driver, out)?;
    }
    if checks.drivers.iter().all(|driver| driver.library.is_none()) {
        writeln!(
            out,
            "driver     no libcuda.so.1 installed or in use; `trace` waits for one, \
             `--driver PATH` names one"
        )?;
    }
    for process in &checks.unlisted_processes {
        let kind = if process.has_cuda { "warning" } else { "note" };
        writeln!(out, "{kind:<10} {}", process.message)?;
    }
    if let Some(plan) = &checks.plan {
        writeln!(out, "plan       attach mode `{}`{}", plan.attach_mode, state(plan))?;
    }
    for warning in &checks.warnings {
        writeln!(out, "warning    {warning}")?;
    }
    let refused = checks.restrictions.iter().find(|found| found.effect == Effect::Refused.name());
    match (refused, &checks.error) {
        (Some(found), _) => writeln!(out, "verdict    tracing does not work here: {}", found.name),
        (None, Some(error)) => writeln!(out, "verdict    {error}"),
        (None, None) => writeln!(out, "verdict    tracing works here"),
    }
}

fn privileges(privileges: &Privileges) -> String {
    let can = |can| if can { "can" } else { "cannot" };
    let without = if privileges.missing.is_empty() {
        String::new()
    } else {
        format!(" (without {})", privileges.missing.join(", "))
    };
    format!(
        "user {}: {} load BPF programs, {} inspect processes of other users{without}",
        privileges.uid,
        can(privileges.load),
        can(privileges.inspect),
    )
}

fn attach_mode(row: &AttachModeRow) -> String {
    match (row.works, &row.error) {
        (None, _) => "not tried".to_owned(),
        (Some(_), Some(error)) => format!("no: {error}"),
        (Some(_), None) => format!("works: {}", row.about),
    }
}

const fn state(plan: &Plan) -> &'static str {
    if plan.task_storage {
        ", per-thread state in task storage"
    } else {
        ", per-thread state in a BPF map"
    }
}

fn write_driver(driver: &Driver, out: &mut dyn Write) -> io::Result<()> {
    if let Some(error) = &driver.error {
        return writeln!(out, "driver     {error}");
    }
    let Some(library) = &driver.library else { return Ok(()) };
    let stepped = match library.hooked_functions - library.emulated_functions {
        0 => String::new(),
        functions => format!(" ({functions} of them single-stepped (slow))"),
    };
    writeln!(
        out,
        "driver     {}: {} of {} hooked functions{stepped}, used by {} process{}",
        driver.path,
        library.hooked_functions,
        Checks::hooks(),
        library.processes,
        if library.processes == 1 { "" } else { "es" },
    )?;
    if library.unknown_functions.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "warning    {}: memory functions that this version does not know, so what they allocate is \
         not counted; use a newer version of vramscope: {}",
        driver.path,
        library.unknown_functions.join(", "),
    )
}
