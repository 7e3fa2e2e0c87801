//! One page for people.

use std::io::{self, Write};

use engine::diagnosis::{Asked, Cause};
use engine::holding::{HeldSite, Holding};
use engine::stack::{Frame, SiteName};
use engine::units::{Bytes, Nanos};

use super::{RECORDING, Refused, Story, Trigger};
use crate::export::advice::{self, Advice};
use crate::export::places::shown;
use crate::export::text::{Style, age, count, sites, span};
use crate::export::verdict::{callers, place};
use crate::plain::{plain, plain_up_to};

/// Processes, and sites of each, that the page lists.
const HOLDERS: usize = 10;
const SITES: usize = 5;

/// Frames that are told beside the place of a site.
const CALLERS: usize = 2;

/// Frames of the stack that the page shows; incident.json has all.
const FRAMES: usize = 24;

/// Processes that grew that the page lists.
const GROWN: usize = 5;

/// The longest sentence.
const SENTENCE: usize = 1000;

/// The first line: what happened, in short.
pub(super) fn headline(story: &Story<'_>) -> String {
    let device = match (story.gpu, story.device) {
        (Some(gpu), _) => Some(format!("GPU {}", gpu.0)),
        (None, Some(device)) => Some(format!("its device {}", device.0)),
        (None, None) => None,
    };
    let gpu = device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
    let device = device.unwrap_or_else(|| "the device".to_owned());
    let who = story
        .who
        .map_or_else(String::new, |who| format!("process {} ({})", who.pid, plain(&who.name)));
    match (story.trigger, story.refused) {
        (Trigger::OutOfMemory, Some(refused)) => {
            let happened = match refused.diagnosis.cause {
                Cause::DeviceExhausted
                | Cause::CacheFragmented
                | Cause::PoolFragmented
                | Cause::Unknown => format!("out of memory{gpu}"),
                Cause::LargerThanDevice => format!("request larger than {device}"),
                Cause::Quota => format!("allocation denied{gpu} although memory is free (quota)"),
                Cause::AddressSpace => "address space exhausted".to_owned(),
                Cause::HostMemory => "host memory exhausted".to_owned(),
            };
            let what = match refused.asked {
                Asked::Memory(kind, bytes) => format!("{bytes} of {kind} memory"),
                Asked::Addresses => "addresses".to_owned(),
                Asked::Other => format!("memory for {}", plain(&refused.function)),
            };
            format!("{happened}: {who} requested {what}")
        }
        (Trigger::OutOfMemory, None) => format!("out of memory{gpu}: {who}"),
        (Trigger::Limit, _) => {
            format!("threshold exceeded{gpu}: {}", plain_up_to(story.limit.unwrap_or(""), SENTENCE))
        }
        (Trigger::Asked, _) => "manual snapshot of all processes".to_owned(),
    }
}

/// Writes the page for those who may not know where programs lie: of paths the last part.
pub fn write_without_folders(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    let bare = |frames: &[Frame]| frames.iter().map(|frame| shown(frame, false)).collect();
    let refused =
        story.refused.map(|refused| Refused { frames: bare(&refused.frames), ..refused.clone() });
    let mut holders = story.holders.to_vec();
    for site in holders.iter_mut().flat_map(|holder| &mut holder.sites) {
        site.frames = bare(&site.frames);
    }
    write(out, &Story { refused: refused.as_ref(), holders: &holders, ..*story })
}

/// Writes the page.
pub fn write(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    writeln!(out, "{}", headline(story))?;
    let clock = &story.names.clock;
    writeln!(out, "{}, host {}", clock.precise(story.at), plain(story.host))?;
    refused(out, story)?;
    figures(out, story)?;
    holders(out, story)?;
    grown(out, story)?;
    writeln!(out, "\nADVICE\n")?;
    let all = Advice { gpus: story.advice.to_vec(), ..Advice::default() };
    advice::write(out, &all, Style::default())?;
    rest(out, story)
}

fn refused(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    let Some(refused) = story.refused else { return Ok(()) };
    let diagnosis = &refused.diagnosis;
    let sentence = plain_up_to(&diagnosis.sentence, SENTENCE);
    writeln!(out, "\nCAUSE: {} ({})", diagnosis.cause.name(), diagnosis.sureness.name())?;
    writeln!(out, "  {sentence}.")?;
    if story.errors > 1 {
        writeln!(out, "  Failed {} times within a few seconds.", story.errors)?;
    }
    if story.recovered {
        writeln!(out, "  The same request succeeded a moment later (recovered).")?;
    }
    match story.skipped {
        0 => {}
        1 => writeln!(out, "  1 earlier failure of this process was suppressed.")?,
        more => writeln!(out, "  {more} earlier failures of this process were suppressed.")?,
    }
    let thread = story.who.and_then(|who| who.tid);
    let thread = thread.map_or_else(String::new, |tid| format!(" on thread {tid}"));
    writeln!(out, "\nCALL: {}{thread}", plain(&refused.function))?;
    if refused.frames.is_empty() {
        return writeln!(out, "  {}", place(refused.site, &refused.frames));
    }
    sites::frames(out, &refused.frames, "  ", Style { stack_depth: FRAMES, ..Style::default() })
}

fn figures(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    let mut lines: Vec<(String, Bytes)> = Vec::new();
    let mut add = |what: &str, bytes: Option<Bytes>| {
        lines.extend(bytes.map(|bytes| (what.to_owned(), bytes)));
    };
    let traced = story.holders.iter().fold(0_u64, |sum, one| sum.saturating_add(one.live_bytes.0));
    add("total", story.total());
    match story.refused {
        Some(refused) => {
            let figures = &refused.diagnosis.figures;
            add("free (last driver report)", figures.free_told);
            add("free at the error (estimated)", figures.free);
            add("traced allocations", Some(Bytes(traced)));
            add("untracked (contexts, code, pools, before the trace)", figures.untracked);
            let cached = figures.cache_unused.map(|(bytes, _)| bytes);
            add("unused in PyTorch's cache of the same process", cached);
            add("unused in memory pools of the same process", figures.pool_unused);
            add(
                "unused in caches and pools of other processes",
                Some(figures.others_unused).filter(|bytes| bytes.0 > 0),
            );
        }
        None => {
            add("free (last driver report)", story.free());
            add("free at that time (estimated)", story.free_then);
            add("traced allocations", Some(Bytes(traced)));
        }
    }
    writeln!(out, "\nMEMORY")?;
    for (what, bytes) in lines {
        writeln!(out, "  {bytes:>12}  {what}")?;
    }
    if !story.snapshot.certainty.exact() {
        writeln!(out, "  not exact: {}", why_inexact(story))?;
    }
    Ok(())
}

fn why_inexact(story: &Story<'_>) -> &'static str {
    let certainty = &story.snapshot.certainty;
    if certainty.lost.events() > 0 {
        "events were lost"
    } else if certainty.before_trace {
        "processes hold memory from before the trace, known only in total"
    } else if certainty.unknown_context > 0 {
        "a context ended, and some allocations have an unknown context"
    } else if certainty.ambiguous_calls > 0 {
        "a thread that captured one stream used others"
    } else {
        "calls of several threads overlapped"
    }
}

fn holders(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    writeln!(out, "\nHOLDERS")?;
    if story.holders.is_empty() {
        writeln!(out, "  none traced")?;
    }
    for holder in story.holders.iter().take(HOLDERS) {
        self::holder(out, story, holder)?;
    }
    if let Some(more) = story.holders.len().checked_sub(HOLDERS).filter(|more| *more > 0) {
        let processes = if more == 1 { "process" } else { "processes" };
        writeln!(out, "  … {more} more {processes} (incident.json lists all)")?;
    }
    Ok(())
}

fn holder(out: &mut dyn Write, story: &Story<'_>, holder: &Holding) -> io::Result<()> {
    let (_, untracked) = story.account(holder.key.pid);
    let untracked = untracked.filter(|bytes| bytes.0 > 0);
    let held = match (holder.live_allocations, untracked) {
        (0, Some(bytes)) => format!("{bytes} reported by the driver, not traced"),
        (some, None) => format!("{} in {}", holder.live_bytes, count(some)),
        (some, Some(bytes)) => {
            format!("{} in {}, {bytes} untracked", holder.live_bytes, count(some))
        }
    };
    writeln!(out, "  process {} ({}): {held}", holder.key.pid, plain(&holder.name))?;
    for site in holder.sites.iter().take(SITES) {
        self::site(out, site)?;
    }
    Ok(())
}

fn site(out: &mut dyn Write, site: &HeldSite) -> io::Result<()> {
    let id = match site.name {
        SiteName::Told(_) => format!("  [{}]", site.name),
        _ => String::new(),
    };
    let place = place(site.name, &site.frames);
    writeln!(out, "    {:>12}  {}{id}", site.live_bytes, plain_up_to(&place, SENTENCE))?;
    for caller in callers(&site.frames, CALLERS) {
        writeln!(out, "    {:>12}  from {}", "", plain_up_to(&caller, SENTENCE))?;
    }
    Ok(())
}

fn grown(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    writeln!(out, "\nGROWTH IN THE LAST MINUTES")?;
    let grew: Vec<_> = story.grown.iter().filter(|one| one.bytes > 0).take(GROWN).collect();
    if grew.is_empty() {
        writeln!(out, "  none")?;
    }
    for one in grew {
        writeln!(
            out,
            "  {} (pid {}): +{} in {}",
            plain(&one.name),
            one.pid,
            Bytes(one.bytes.unsigned_abs()),
            age(one.within),
        )?;
    }
    Ok(())
}

fn rest(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    let after = match story.snapshot.at - story.at {
        Nanos(0) => "the same moment".to_owned(),
        after => format!("{} after the error", span(after)),
    };
    writeln!(
        out,
        "\n{RECORDING} has the last {} events (vramscope report {RECORDING}).\n\
         snapshot.json is from {after}; incident.json has all of this for programs.",
        story.events,
    )
}
