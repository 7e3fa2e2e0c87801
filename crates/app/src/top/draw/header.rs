//! The first lines: time, GPUs, verdict, tabs; and the last line.

use engine::view::GpuRow;
use formats::report::live::text::format_age;
use formats::report::tables::gpus::{self, GpuTexts};
use formats::report::tables::incidents::mark_text;
use formats::report::tables::sites::composition;
use formats::report::tables::{chart_column, sparkline};
use formats::report::view::{note_text, verdict_line, wrap};
use formats::sanitize::sanitize;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use super::{Canvas, ROOMY};
use crate::top::frame::TopFrame;
use crate::top::pages::rows::Shown;
use crate::top::state::{ClickAreas, MemoryBy, Page, State, Tab};
use crate::top::theme::Tone;

/// Width of the bar of a GPU.
const BAR_WIDTH: (u16, u16) = (8, 40);

/// Maximum number of lines that say what is missing.
const MAX_MISSING_LINES: usize = 3;

/// Maximum width of the line of a GPU.
const MAX_GPU_WIDTH: u16 = 130;

/// Width from which titles of tabs are spelled out.
const WIDE: u16 = 70;

/// Draws the lines above the page; returns the first line of the page.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    shown: &Shown<'_>,
    area: Rect,
    areas: &mut ClickAreas,
) -> u16 {
    title(canvas, shown, area);
    let mut y = gpu_lines(canvas, shown, Rect { y: area.y + 1, ..area }, area.height);
    y = verdicts(canvas, shown, Rect { y, ..area });
    for host in shown.frame.hosts.iter().filter(|_| area.height > 8) {
        let missing = host.missing.iter().flat_map(|text| {
            wrap(&sanitize(text), usize::from(area.width), 0).into_iter().take(MAX_MISSING_LINES)
        });
        for line in missing {
            canvas.put(0, y, area.width, &line, Tone::Warning);
            y += 1;
        }
    }
    match canvas.state.page() {
        Page::Tab(_) if area.height >= ROOMY => tabs(canvas, shown, Rect { y, ..area }, areas),
        Page::Tab(_) => y,
        page => breadcrumb(canvas, shown, page, Rect { y, ..area }),
    }
}

fn title(canvas: &mut Canvas<'_>, shown: &Shown<'_>, area: Rect) {
    let state = canvas.state;
    let mut parts = Vec::new();
    match &shown.frame.hosts[..] {
        [host] => {
            parts.extend(Some(sanitize(&host.name).into_owned()).filter(|name| !name.is_empty()));
            parts.push(host.context.clock.time_of_day(host.snapshot.at));
        }
        hosts => parts.push(format!("{} hosts", hosts.len())),
    }
    parts.push(sanitize(&state.source).into_owned());
    let processes: usize = shown.views.iter().map(|view| view.processes.len()).sum();
    parts.push(match processes {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    });
    let text = format!("vramscope  {}", parts.join("  "));
    canvas.put(area.x, area.y, area.width, &text, Tone::Title);
    let mut marks = Vec::new();
    if let Some(replay) = shown.frame.replay {
        let end = if replay.has_ended { " end" } else { "" };
        let speed = if replay.has_ended { String::new() } else { format!(" {}x", replay.speed) };
        marks.push(format!("{}{speed}{end}", format_age(replay.elapsed)));
    }
    if let Some(held) = &state.held {
        marks.push(if held.is_rewound { "REWOUND" } else { "PAUSED" }.to_owned());
        marks.extend(behind(shown));
    }
    if state.baseline.is_some() {
        marks.push("BASELINE".to_owned());
    }
    let inexact = shown.views.iter().any(|view| view.notes.iter().any(|note| note.is_inexact()));
    if inexact {
        marks.push("not exact".to_owned());
    }
    let tone = if state.held.is_some() { Tone::Warning } else { Tone::Dim };
    canvas.put_right(area, area.y, &format!(" {}", marks.join(" ")), tone);
}

/// Returns how long before the newest frame the shown one was, if it is another.
fn behind(shown: &Shown<'_>) -> Option<String> {
    let (_, newest) = shown.history.newest()?;
    let time = |frame: &TopFrame| frame.hosts.first().map(|host| host.snapshot.at);
    let behind = time(newest)? - time(shown.frame)?;
    (behind.millis() >= 1000).then(|| format_age(behind))
}

/// Draws the GPUs of all hosts; returns the line after them.
fn gpu_lines(canvas: &mut Canvas<'_>, shown: &Shown<'_>, area: Rect, height: u16) -> u16 {
    let all: Vec<_> = shown
        .views
        .iter()
        .enumerate()
        .flat_map(|(host, view)| view.gpus.iter().map(move |gpu| (host, gpu)))
        .collect();
    let room = (height / 4).max(1);
    let count = u16::try_from(all.len()).unwrap_or(1000).min(1000);
    let per_gpu = if count * 2 <= room && height >= ROOMY { 2 } else { 1 };
    let mut y = area.y;
    for (index, (host, gpu)) in all.iter().enumerate() {
        if y + per_gpu > area.y + room && index + 1 < all.len() {
            let rest = all.len() - index;
            canvas.put(0, y, area.width, &format!("… {rest} more GPUs"), Tone::Dim);
            return y + 1;
        }
        gpu_line(canvas, shown, (*host, gpu), Rect { y, ..area });
        y += 1;
        if per_gpu > 1 {
            usage_line(canvas, shown, (*host, gpu), Rect { y, ..area });
            y += 1;
        }
    }
    y
}

fn texts(shown: &Shown<'_>, host: usize, gpu: &GpuRow<'_>) -> Option<GpuTexts> {
    let view = shown.views.get(host)?;
    let clock = &shown.frame.hosts.get(host)?.context.clock;
    Some(gpus::texts(gpu, view, clock))
}

fn gpu_line(
    canvas: &mut Canvas<'_>,
    shown: &Shown<'_>,
    (host, gpu): (usize, &GpuRow<'_>),
    area: Rect,
) {
    let Some(texts) = texts(shown, host, gpu) else { return };
    let prefix = match shown.views.len() {
        0 | 1 => String::new(),
        _ => {
            let name = shown.frame.hosts.get(host).map(|host| sanitize(&host.name).into_owned());
            format!("{} ", name.unwrap_or_default())
        }
    };
    let alarm = !texts.full.is_empty();
    let length = |text: &str| u16::try_from(text.chars().count()).unwrap_or(1000).min(1000);
    let (left, right) =
        gpu_texts(&prefix, &texts, |left, right| area.width >= length(left) + length(right));
    // On a wide screen the eye would lose the line between the bar and its end.
    let area = Rect { width: area.width.min(MAX_GPU_WIDTH), ..area };
    let x = canvas.put(area.x, area.y, area.width, &left, Tone::Strong);
    let room = area.right().saturating_sub(x).saturating_sub(length(&right) + 3);
    let bar = room.min(BAR_WIDTH.1);
    if let Some(share) = texts.share.filter(|_| bar >= BAR_WIDTH.0) {
        let filled = (f64::from(bar) * share).round() as u16;
        let filled = filled.clamp(u16::from(share > 0.0), bar);
        let tone = if alarm || share > 0.9 { Tone::Alarm } else { Tone::Good };
        let x = canvas.put(x, area.y, 1, "[", Tone::Dim);
        let x = canvas.put(x, area.y, filled, &"█".repeat(usize::from(filled)), tone);
        let rest = bar - filled;
        let x = canvas.put(x, area.y, rest, &"·".repeat(usize::from(rest)), Tone::Dim);
        canvas.put(x, area.y, 1, "]", Tone::Dim);
    }
    canvas.put_right(area, area.y, &right, if alarm { Tone::Alarm } else { Tone::Plain });
}

/// Returns the texts before and after the bar of a GPU: what is urgent stays where the width does
/// not suffice for all.
fn gpu_texts(
    prefix: &str,
    texts: &GpuTexts,
    fits: impl Fn(&str, &str) -> bool,
) -> (String, String) {
    let GpuTexts { name, used, growth, full, .. } = texts;
    // Without the model, and without the time of day.
    let short = name.match_indices(' ').nth(1).map_or(&**name, |(end, _)| &name[..end]);
    let soon = full.split_once(" (").map_or(&**full, |(soon, _)| soon);
    let gap = if growth.is_empty() || full.is_empty() { "" } else { "  " };
    let all = format!("{growth}{gap}{full}");
    let urgent = if full.is_empty() { &**growth } else { &**full };
    let choices = [
        (&**name, &**used, &*all),
        (name, used, urgent),
        (short, used, urgent),
        (short, used, soon),
    ];
    let mut choices = choices
        .into_iter()
        .map(|(name, used, right)| (format!("{prefix}{name}  {used}  "), right.to_owned()));
    let found = choices.find(|(left, right)| fits(left, right));
    found.unwrap_or_else(|| match full.is_empty() {
        true => (format!("{prefix}{short}  {used}"), String::new()),
        false => (format!("{prefix}{short}  "), soon.to_owned()),
    })
}

fn usage_line(
    canvas: &mut Canvas<'_>,
    shown: &Shown<'_>,
    (host, gpu): (usize, &GpuRow<'_>),
    area: Rect,
) {
    let Some(texts) = texts(shown, host, gpu) else { return };
    let values = shown.usage(host, |usage, until| usage.gpu(gpu.gpu, until));
    let width = usize::from(area.width / 3);
    let x = canvas.put(2, area.y, area.width / 3, &sparkline(&values, width), Tone::Chart);
    let x = canvas.put(x + 2, area.y, area.right().saturating_sub(x + 2), &texts.parts, Tone::Dim);
    let marked = canvas.state.theme.style(Tone::Title).add_modifier(Modifier::UNDERLINED);
    for (place, _) in shown.marks(host, None, values.len()) {
        let column = u16::try_from(chart_column(place, values.len(), width)).unwrap_or(u16::MAX);
        canvas.buffer.set_style(Rect { x: 2 + column, y: area.y, width: 1, height: 1 }, marked);
    }
    let newest = shown.marks(host, None, values.len()).next();
    let newest = newest.map(|(_, mark)| format!("mark {}", mark_text(mark)));
    if let Some(text) = newest.filter(|it| usize::from(area.right() - x) > it.chars().count() + 2) {
        canvas.put(x + 2, area.y, area.width, &text, Tone::Title);
    }
}

/// Draws the verdict on each host; returns the line after them.
fn verdicts(canvas: &mut Canvas<'_>, shown: &Shown<'_>, area: Rect) -> u16 {
    let mut y = area.y;
    let is_one = shown.views.len() == 1;
    for (view, host) in shown.views.iter().zip(&shown.frame.hosts) {
        let (text, alarm) = verdict_line(view, &host.context.clock);
        // Without probes, no leak can be found.
        let says_nothing = host.missing.is_some() || !is_one;
        if view.processes.is_empty() || (says_nothing && !alarm) {
            continue;
        }
        // The line of the GPU has the time.
        let is_long = text.chars().count() > usize::from(area.width);
        let state = text.rsplit_once("; ").map(|(_, state)| state.to_owned());
        let text = state.filter(|_| is_long).unwrap_or(text);
        let text = if is_one { text } else { format!("{}: {text}", sanitize(&host.name)) };
        canvas.put(0, y, area.width, &text, if alarm { Tone::Alarm } else { Tone::Plain });
        y += 1;
        if y >= area.y + 3 {
            break;
        }
    }
    y
}

fn tabs(canvas: &mut Canvas<'_>, shown: &Shown<'_>, area: Rect, areas: &mut ClickAreas) -> u16 {
    let leaks: usize = shown.views.iter().map(|view| view.leaks.len()).sum();
    let incidents = shown.history.incidents(shown.number).count();
    let of_agents = shown.frame.hosts.iter().map(|host| host.incidents.len());
    let incidents = incidents + of_agents.sum::<usize>();
    let mut x = 0;
    for (index, tab) in Tab::ALL.iter().enumerate() {
        let number = match tab {
            Tab::Suspects if leaks > 0 => format!(" ({leaks})"),
            Tab::Incidents if incidents > 0 => format!(" ({incidents})"),
            _ => String::new(),
        };
        let name = if area.width >= WIDE { tab.name() } else { &tab.name()[..3] };
        let text = format!(" {} {name}{number} ", index + 1);
        let tone = if *tab == canvas.state.tab() { Tone::Selected } else { Tone::Dim };
        let end = canvas.put(x, area.y, area.width.saturating_sub(x), &text, tone);
        areas.tabs.push((x, end, *tab));
        x = end;
    }
    areas.tabs_line = Some(area.y);
    area.y + 1
}

/// Draws where the page is; returns the line after it.
fn breadcrumb(canvas: &mut Canvas<'_>, shown: &Shown<'_>, page: Page, area: Rect) -> u16 {
    let (host, key, place) = match page {
        Page::Sites { host, key } => (host, key, format!(" › {}", canvas.state.memory_by.name())),
        Page::Stack { host, key, .. } => (host, key, " › sites › call stack".to_owned()),
        Page::Allocations { host, key, .. } => {
            (host, key, " › sites › call stack › allocations".to_owned())
        }
        Page::Leak { .. } | Page::Tab(_) => {
            canvas.put(0, area.y, area.width, "suspects › evidence", Tone::Title);
            return area.y + 1;
        }
    };
    let Some(process) = shown.frame.hosts.get(host).and_then(|host| host.process(key)) else {
        let gone = format!("process {} has exited; Esc goes back", key.pid);
        canvas.put(0, area.y, area.width, &gone, Tone::Warning);
        return area.y + 1;
    };
    let rows = shown.views.get(host).into_iter().flat_map(|view| &view.processes);
    let row = rows.into_iter().find(|row| row.process.key == key);
    let (user, program) = row.map_or(("", &*process.name), |row| (&*row.user, row.program));
    let text = format!("{} {} {}{place}", key.pid, sanitize(user), sanitize(program));
    canvas.put(0, area.y, area.width, &text, Tone::Title);
    canvas.put(0, area.y + 1, area.width, &fitting(&composition(process), area.width), Tone::Dim);
    area.y + 2
}

/// Joins the first texts that fit a width as a whole.
fn fitting<T: AsRef<str>>(texts: &[T], width: u16) -> String {
    let mut line = String::new();
    for text in texts.iter().map(AsRef::as_ref) {
        let gap = if line.is_empty() { "" } else { "  " };
        let length = line.chars().count() + gap.len() + text.chars().count();
        if length > usize::from(width) && !line.is_empty() {
            break;
        }
        line = format!("{line}{gap}{text}");
    }
    line
}

/// Draws the last line: the filter, a message, or keys.
pub(super) fn footer(canvas: &mut Canvas<'_>, shown: &Shown<'_>, area: Rect) {
    let state = canvas.state;
    if state.is_typing {
        let filter = match state.page() {
            Page::Sites { .. } => &state.site_filter,
            _ => &state.filter,
        };
        let text = format!("/{}_  Enter keeps, Esc clears", sanitize(filter));
        canvas.put(0, area.y, area.width, &text, Tone::Strong);
        return;
    }
    if let Some(message) = &state.message {
        canvas.put(0, area.y, area.width, &sanitize(message), Tone::Strong);
        return;
    }
    let mut keys = Vec::new();
    let filter = match state.page() {
        Page::Tab(_) => &*state.filter,
        Page::Sites { .. } => &*state.site_filter,
        _ => "",
    };
    if !filter.is_empty() {
        keys.push(format!("/{}", sanitize(filter)));
    }
    if state.only_leaks {
        keys.push("only leaks".to_owned());
    }
    keys.extend(page_keys(state).iter().map(|text| (*text).to_owned()));
    let keys = fitting(&keys, area.width.saturating_sub(8));
    let x = canvas.put(0, area.y, area.width.saturating_sub(8), &keys, Tone::Dim);
    canvas.put_right(area, area.y, "? help", Tone::Dim);
    // A note where there is room for it; the help has all of them.
    let room = usize::from(area.width.saturating_sub(x + 12));
    if let Some(note) = notes(shown).into_iter().next().filter(|note| note.chars().count() <= room)
    {
        canvas.put(x + 3, area.y, area.width, &note, Tone::Dim);
    }
}

/// Returns the notes on what is not exact, or unknown.
pub(super) fn notes(shown: &Shown<'_>) -> Vec<String> {
    let hosts = shown.views.iter().zip(&shown.frame.hosts);
    let notes = hosts.flat_map(|(view, host)| view.notes.iter().map(move |note| (note, host)));
    notes
        .map(|(note, host)| sanitize(&note_text(note, Some(&host.context.clock))).into_owned())
        .collect()
}

/// Returns the keys of a page, the most important ones first.
fn page_keys(state: &State) -> &'static [&'static str] {
    match (state.page(), state.memory_by) {
        (Page::Tab(Tab::Processes), _) => &[
            "Enter sites",
            "s sort",
            "/ find",
            "l leaks",
            "u c g p group",
            "b baseline",
            "Space freeze",
            "[ ] rewind",
        ],
        (Page::Tab(Tab::Suspects), _) => {
            &["Enter evidence", "Tab next list", "/ find", "Space freeze", "[ ] rewind"]
        }
        (Page::Tab(Tab::Incidents), _) => &["Tab next list", "Space freeze", "[ ] rewind"],
        (Page::Tab(_), _) => {
            &["Enter sites", "Tab next list", "/ find", "Space freeze", "[ ] rewind"]
        }
        (Page::Sites { .. }, MemoryBy::Site) => &[
            "Enter call stack",
            "Esc back",
            "s sort",
            "/ find",
            "m functions, threads",
            "b baseline",
        ],
        (Page::Sites { .. }, MemoryBy::Function) => {
            &["Esc back", "m threads", "e all frames", "/ find"]
        }
        (Page::Sites { .. }, MemoryBy::Thread) => &["Esc back", "m libraries", "/ find"],
        (Page::Sites { .. }, MemoryBy::Library) => &["Esc back", "m sites", "/ find"],
        (Page::Stack { .. }, _) => &["Enter allocations", "e all frames", "Esc back"],
        (Page::Allocations { .. }, _) => &["Esc back"],
        (Page::Leak { .. }, _) => &["e all frames", "Esc back"],
    }
}
