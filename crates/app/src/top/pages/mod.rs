//! Pages of text: a call stack with the evidence on its site, a leak, an incident.

pub(crate) mod listing;
pub(crate) mod lists;
pub(crate) mod rows;
pub(crate) mod source_lines;

use engine::model::{CallStack, ProcessKey, SiteName};
use engine::snapshot::SiteView;
use engine::verdict::Verdict;
use engine::view::View;
use formats::report::live::text::TextStyle;
use formats::report::tables::sites;
use formats::report::tables::stack::{self, StackLine};
use formats::report::verdict;
use formats::report::view::{site_location, wrap, write_leak};
use formats::sanitize::sanitize;

use crate::top::pages::lists::{leak_id, sites_of, verdicts};
use crate::top::pages::rows::Shown;
use crate::top::pages::source_lines::SourceLines;
use crate::top::theme::Tone;

/// A line and what it means.
pub(crate) type TextLine = (String, Tone);

/// Wraps a text into lines.
fn add(lines: &mut Vec<TextLine>, text: &str, indent: usize, width: usize, tone: Tone) {
    let text = format!("{}{text}", " ".repeat(indent));
    lines.extend(wrap(&text, width, indent + 2).into_iter().map(|line| (line, tone)));
}

/// Returns the call stack of a site, the evidence on it, and what to try.
pub(crate) fn stack_page(
    shown: &Shown<'_>,
    (host, key, name): (usize, ProcessKey, SiteName),
    unfolded: bool,
    width: usize,
    sources: &SourceLines,
) -> Option<Vec<TextLine>> {
    let frame = shown.frame.hosts.get(host)?;
    let process = frame.process(key)?;
    let all = sites_of(shown, host, process);
    let found = all.iter().find(|(site, _)| site.name == name).map(|(site, _)| *site)?;
    let verdict = verdicts(shown, host, process).get(&name).copied();
    let mut lines = Vec::new();
    let is_leak = verdict.is_some_and(|one| one.verdict == Verdict::Leak);
    let head = sanitize(&site_location(found.name, &found.frames)).into_owned();
    let state = verdict.map_or_else(String::new, |one| {
        format!(": {}", verdict::summary(one.resource, one.verdict, &one.evidence))
    });
    let tone = if is_leak { Tone::Alarm } else { Tone::Strong };
    add(&mut lines, &format!("{head}{state}"), 0, width, tone);
    add(&mut lines, &numbers(found), 2, width, Tone::Plain);
    if let Some(one) = verdict {
        lines.push(("evidence".to_owned(), Tone::Title));
        for line in verdict::evidence(one) {
            add(&mut lines, &line, 2, width, Tone::Plain);
        }
    }
    lines.push(("call stack, innermost first".to_owned(), Tone::Title));
    let pid = frame.is_local.then_some(key.pid);
    add_stack(&mut lines, &found.frames, unfolded, width, &|file, line| {
        pid.and_then(|pid| sources.line(pid, file, line))
    });
    if found.frames.is_empty() {
        add(&mut lines, &verdict::location(found.name, &found.frames), 2, width, Tone::Dim);
    }
    let view = shown.views.get(host)?;
    if let Some(advice) = advice(view, key, name) {
        lines.push(("try".to_owned(), Tone::Title));
        add(&mut lines, advice, 2, width, Tone::Plain);
    }
    Some(lines)
}

/// Returns the values of a site.
fn numbers(site: &SiteView) -> String {
    let cells = sites::cells(site, None, None);
    let of = |title: &str| {
        let index = sites::COLUMNS.iter().position(|spec| spec.title == title);
        index.and_then(|index| cells.get(index)).cloned().unwrap_or_default()
    };
    let peak = formats::report::view::compact_size(site.peak_bytes.0);
    format!(
        "live {} in {} allocations, peak {peak}; {} allocated so far, {} freed; {}",
        of("LIVE"),
        site.live_allocations,
        site.allocations_total,
        site.freed_total,
        of("KIND"),
    )
}

/// Returns what to try for a site of a process that leaks.
fn advice<'a>(view: &'a View<'_>, key: ProcessKey, name: SiteName) -> Option<&'a str> {
    let leak = view.leaks.iter().find(|leak| {
        leak.sites.iter().any(|site| site.site == name && site.pid == Some(key.pid))
    })?;
    Some(&leak.advice.text)
}

fn add_stack(
    lines: &mut Vec<TextLine>,
    frames: &CallStack,
    unfolded: bool,
    width: usize,
    source: &dyn Fn(&str, u32) -> Option<String>,
) {
    for line in stack::lines(frames, unfolded) {
        match line {
            StackLine::Folded(text) => add(lines, &text, 2, width, Tone::Dim),
            StackLine::Frame { index, text, is_responsible, is_library } => {
                let tone = match (is_responsible, is_library) {
                    (true, _) => Tone::Strong,
                    (false, true) => Tone::Dim,
                    (false, false) => Tone::Plain,
                };
                let mark = if is_responsible { "▸ " } else { "  " };
                add(lines, &format!("{mark}{text}"), 0, width, tone);
                let frame = frames.get(index).filter(|_| !is_library);
                let code = frame.and_then(|it| source(it.file.as_deref()?, it.line));
                if let Some(code) = code {
                    let code: String = code.chars().take(width.saturating_sub(6)).collect();
                    lines.push((format!("    │ {code}"), Tone::Good));
                }
            }
        }
    }
}

/// Returns a leak with its evidence, its stack and what to try.
pub(crate) fn leak_page(
    shown: &Shown<'_>,
    (host, id): (usize, u64),
    unfolded: bool,
    width: usize,
) -> Option<Vec<TextLine>> {
    let view = shown.views.get(host)?;
    let index = view.leaks.iter().position(|leak| leak_id(leak) == id)?;
    let depth = if unfolded { 0 } else { TextStyle::default().stack_depth };
    let style = TextStyle { width, stack_depth: depth, ..TextStyle::default() };
    let mut text = Vec::new();
    write_leak(&mut text, view, index + 1, style).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let tone = |(number, line): (usize, &str)| match line {
        _ if number == 0 => Tone::Alarm,
        line if line.starts_with("  ") && !line.starts_with("   ") && number > 2 => Tone::Title,
        line if line.trim_start().starts_with('…') => Tone::Dim,
        _ => Tone::Plain,
    };
    let lines = text.lines().enumerate().flat_map(|(number, line)| {
        let indent = line.chars().take_while(|c| *c == ' ').count() + 2;
        wrap(line, width, indent).into_iter().map(move |text| (text, tone((number, line))))
    });
    Some(lines.collect())
}
