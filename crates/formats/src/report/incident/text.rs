//! Text summary of an incident.

use std::io::{self, Write};

use engine::model::{Bytes, CallStack, Holder, HolderSite, Nanos, SiteName};
use engine::oom::{OomCause, RequestedResource};

use super::{FailedRequest, IncidentReport, RECORDING_FILE, Trigger};
use crate::report::advice;
use crate::report::advice::AdviceReport;
use crate::report::live::text::{TextStyle, format_age, format_count, format_duration};
use crate::report::redact::redact_paths;
use crate::report::text_page::TextPage;
use crate::report::verdict::{callers, location};
use crate::report::view::write_stack;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Maximum number of listed processes, and of sites of each.
const MAX_HOLDERS: usize = 10;
const MAX_SITES: usize = 5;

/// Maximum number of callers printed below a site's location.
const MAX_CALLERS: usize = 2;

/// Maximum number of listed growing processes.
const MAX_GROWING: usize = 5;

/// Maximum number of characters of a sentence.
const MAX_SENTENCE_CHARS: usize = 1000;

/// Returns the first line: what happened, in short.
pub(super) fn headline(report: &IncidentReport<'_>) -> String {
    let device = match (report.gpu, report.device) {
        (Some(gpu), _) => Some(format!("GPU {}", gpu.0)),
        (None, Some(device)) => Some(format!("its device {}", device.0)),
        (None, None) => None,
    };
    let gpu = device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
    let device = device.unwrap_or_else(|| "the device".to_owned());
    let process = report.requester.map_or_else(String::new, |requester| {
        format!("process {} ({})", requester.pid, sanitize(&requester.name))
    });
    match (report.trigger, report.failed_request) {
        (Trigger::OutOfMemory, Some(failed)) => {
            let error = match failed.diagnosis.cause {
                OomCause::DeviceExhausted
                | OomCause::CacheFragmentation
                | OomCause::PoolFragmentation
                | OomCause::Unknown => format!("out of memory{gpu}"),
                OomCause::RequestExceedsDevice => format!("request larger than {device}"),
                OomCause::Quota => {
                    format!("allocation denied{gpu} although memory is free (quota)")
                }
                OomCause::AddressSpaceExhausted => "address space exhausted".to_owned(),
                OomCause::HostMemoryExhausted => "host memory exhausted".to_owned(),
            };
            let request = match failed.requested {
                RequestedResource::Memory(kind, bytes) => format!("{bytes} of {kind} memory"),
                RequestedResource::Addresses => "addresses".to_owned(),
                RequestedResource::Other => format!("memory for {}", sanitize(&failed.function)),
            };
            format!("{error}: {process} requested {request}")
        }
        (Trigger::OutOfMemory, None) => format!("out of memory{gpu}: {process}"),
        (Trigger::Threshold, _) => {
            format!(
                "threshold exceeded{gpu}: {}",
                sanitize_up_to(report.limit.unwrap_or(""), MAX_SENTENCE_CHARS)
            )
        }
        (Trigger::Manual, _) => "manual snapshot of all processes".to_owned(),
    }
}

/// Writes the summary without directories of paths, for readers who may not see them.
pub fn write_redacted(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    let redacted = |frames: &CallStack| frames.map(|frame| redact_paths(frame, false));
    let failed_request = report
        .failed_request
        .map(|failed| FailedRequest { frames: redacted(&failed.frames), ..failed.clone() });
    let mut holders = report.holders.to_vec();
    for site in holders.iter_mut().flat_map(|holder| &mut holder.sites) {
        site.frames = redacted(&site.frames);
    }
    write(
        out,
        &IncidentReport { failed_request: failed_request.as_ref(), holders: &holders, ..*report },
    )
}

/// Writes the summary.
pub fn write(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    writeln!(out, "{}", headline(report))?;
    let clock = &report.context.clock;
    writeln!(out, "{}, host {}", clock.precise(report.at), sanitize(report.host))?;
    cause(out, report)?;
    memory(out, report)?;
    holders(out, report)?;
    growth(out, report)?;
    writeln!(out, "\nADVICE\n")?;
    let all = AdviceReport { gpus: report.advice.to_vec(), ..AdviceReport::default() };
    advice::write(out, &all, TextStyle::default())?;
    footer(out, report)
}

fn cause(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    let Some(failed) = report.failed_request else { return Ok(()) };
    let diagnosis = &failed.diagnosis;
    let sentence = sanitize_up_to(&diagnosis.sentence, MAX_SENTENCE_CHARS);
    writeln!(out, "\nCAUSE: {} ({})", diagnosis.cause.name(), diagnosis.confidence.name())?;
    writeln!(out, "  {sentence}.")?;
    if report.errors > 1 {
        writeln!(out, "  Failed {} times within a few seconds.", report.errors)?;
    }
    if report.recovered {
        writeln!(out, "  The same request succeeded a moment later (recovered).")?;
    }
    match report.skipped {
        0 => {}
        1 => writeln!(out, "  1 earlier failure of this process was suppressed.")?,
        more => writeln!(out, "  {more} earlier failures of this process were suppressed.")?,
    }
    let thread = report.requester.and_then(|requester| requester.tid);
    let thread = thread.map_or_else(String::new, |tid| format!(" on thread {tid}"));
    writeln!(out, "\nCALL: {}{thread}", sanitize(&failed.function))?;
    if failed.frames.is_empty() {
        return writeln!(out, "  {}", location(failed.site, &failed.frames));
    }
    write_stack(&mut TextPage::new(out, TextStyle::default()), &failed.frames)
}

fn memory(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    let mut lines: Vec<(String, Bytes)> = Vec::new();
    let mut add = |name: &str, bytes: Option<Bytes>| {
        lines.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
    };
    let traced = report.holders.iter().fold(0_u64, |sum, one| sum.saturating_add(one.live_bytes.0));
    add("total", report.total());
    match report.failed_request {
        Some(failed) => {
            let breakdown = &failed.diagnosis.memory;
            add("free (last driver report)", breakdown.free_reported);
            add("free at the error (estimated)", breakdown.free_estimated);
            add("traced allocations", Some(Bytes(traced)));
            add("untracked (contexts, code, pools, before the trace)", breakdown.untracked);
            let cached = breakdown.cache_unused.map(|(bytes, _)| bytes);
            add("unused in PyTorch's cache of the same process", cached);
            add("unused in memory pools of the same process", breakdown.pool_unused);
            add(
                "unused in caches and pools of other processes",
                Some(breakdown.others_unused).filter(|bytes| bytes.0 > 0),
            );
        }
        None => {
            add("free (last driver report)", report.free());
            add("free at that time (estimated)", report.free_estimate);
            add("traced allocations", Some(Bytes(traced)));
        }
    }
    writeln!(out, "\nMEMORY")?;
    for (name, bytes) in lines {
        writeln!(out, "  {bytes:>12}  {name}")?;
    }
    if !report.snapshot.uncertainty.exact() {
        writeln!(out, "  not exact: {}", inexact_reason(report))?;
    }
    Ok(())
}

fn inexact_reason(report: &IncidentReport<'_>) -> &'static str {
    let uncertainty = &report.snapshot.uncertainty;
    if uncertainty.lost.events() > 0 {
        "events were lost"
    } else if uncertainty.unknown_calls > 0 {
        "memory functions of a newer driver were called"
    } else if uncertainty.before_trace {
        "processes hold memory from before the trace, known only in total"
    } else if uncertainty.unknown_context > 0 {
        "a context ended, and some allocations have an unknown context"
    } else if uncertainty.ambiguous_calls > 0 {
        "a thread that captured one stream used others"
    } else {
        "calls of several threads overlapped"
    }
}

fn holders(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    writeln!(out, "\nHOLDERS")?;
    if report.holders.is_empty() {
        writeln!(out, "  none traced")?;
    }
    for holder in report.holders.iter().take(MAX_HOLDERS) {
        self::holder(out, report, holder)?;
    }
    if let Some(more) = report.holders.len().checked_sub(MAX_HOLDERS).filter(|more| *more > 0) {
        let processes = if more == 1 { "process" } else { "processes" };
        writeln!(out, "  … {more} more {processes} (incident.json lists all)")?;
    }
    Ok(())
}

fn holder(out: &mut dyn Write, report: &IncidentReport<'_>, holder: &Holder) -> io::Result<()> {
    let (_, untracked) = report.driver_usage(holder.key.pid);
    let untracked = untracked.filter(|bytes| bytes.0 > 0);
    let held = match (holder.live_allocations, untracked) {
        (0, Some(bytes)) => format!("{bytes} reported by the driver, not traced"),
        (some, None) => format!("{} in {}", holder.live_bytes, format_count(some)),
        (some, Some(bytes)) => {
            format!("{} in {}, {bytes} untracked", holder.live_bytes, format_count(some))
        }
    };
    writeln!(out, "  process {} ({}): {held}", holder.key.pid, sanitize(&holder.name))?;
    for site in holder.sites.iter().take(MAX_SITES) {
        self::site(out, site)?;
    }
    Ok(())
}

fn site(out: &mut dyn Write, site: &HolderSite) -> io::Result<()> {
    let id = match site.name {
        SiteName::Resolved(_) => format!("  [{}]", site.name),
        _ => String::new(),
    };
    let location = location(site.name, &site.frames);
    writeln!(
        out,
        "    {:>12}  {}{id}",
        site.live_bytes,
        sanitize_up_to(&location, MAX_SENTENCE_CHARS)
    )?;
    for caller in callers(&site.frames, MAX_CALLERS) {
        writeln!(out, "    {:>12}  from {}", "", sanitize_up_to(&caller, MAX_SENTENCE_CHARS))?;
    }
    Ok(())
}

fn growth(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    writeln!(out, "\nGROWTH IN THE LAST MINUTES")?;
    let growing: Vec<_> =
        report.grown.iter().filter(|one| one.bytes > 0).take(MAX_GROWING).collect();
    if growing.is_empty() {
        writeln!(out, "  none")?;
    }
    for one in growing {
        writeln!(
            out,
            "  {} (pid {}): +{} in {}",
            sanitize(&one.name),
            one.pid,
            Bytes(one.bytes.unsigned_abs()),
            format_age(one.within),
        )?;
    }
    Ok(())
}

fn footer(out: &mut dyn Write, report: &IncidentReport<'_>) -> io::Result<()> {
    let after = match report.snapshot.at - report.at {
        Nanos(0) => "the same moment".to_owned(),
        after => format!("{} after the error", format_duration(after)),
    };
    writeln!(
        out,
        "\n{RECORDING_FILE} has the last {} events (vramscope report {RECORDING_FILE}).\n\
         snapshot.json is from {after}; incident.json has all of this for programs.",
        report.events,
    )
}
