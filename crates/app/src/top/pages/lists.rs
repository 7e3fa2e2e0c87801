//! The table of each page.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use engine::model::{ProcessKey, SiteName};
use engine::snapshot::{LibraryView, ProcessView, SiteView, ThreadView};
use engine::verdict::{SiteVerdict, Verdict};
use engine::view::{FunctionRow, Leak, ProcessState, functions};
use formats::report::tables::incidents::Incident;
use formats::report::tables::processes::{self, ProcessColumn};
use formats::report::tables::{
    allocations, allocators, incidents, kernels, leaks, memory_of, objects, process_filter, sites,
};

use crate::top::keys::{order_of, site_order_of};
use crate::top::pages::listing::{Listing, Row, Target, id_of};
use crate::top::pages::rows::{Item, Shown};
use crate::top::state::{MemoryBy, Page, State, Tab};
use crate::top::theme::Tone;

/// Returns the table of a page; `None` if it is a text.
pub(crate) fn of_page<'a>(shown: &'a Shown<'a>, state: &'a State) -> Option<Listing<'a>> {
    match state.page() {
        Page::Tab(Tab::Processes) => Some(processes(shown, state)),
        Page::Tab(Tab::Suspects) => Some(suspects(shown, state)),
        Page::Tab(Tab::Tensors) => Some(of_tensors(shown, state)),
        Page::Tab(Tab::Objects) => Some(of_objects(shown, state)),
        Page::Tab(Tab::Kernels) => Some(of_kernels(shown, state)),
        Page::Tab(Tab::Incidents) => Some(of_incidents(shown)),
        Page::Sites { host, key } => match state.memory_by {
            MemoryBy::Site => of_sites(shown, state, host, key),
            by => memory_by(state, by, shown.frame.hosts.get(host)?.process(key)?),
        },
        Page::Allocations { host, key, site } => of_allocations(shown, host, key, site),
        Page::Stack { .. } | Page::Leak { .. } => None,
    }
}

/// Returns a row of a process.
fn plain_row(cells: Vec<String>, host: usize, key: ProcessKey) -> Row {
    Row { cells, tone: Tone::Plain, target: Target::Process { host, key } }
}

/// Returns the id of a leak that stays while the list changes.
pub(crate) fn leak_id(leak: &Leak<'_>) -> u64 {
    id_of((&leak.program, leak.sites.first().map(|site| site.site), leak.lines.first()))
}

fn processes<'a>(shown: &'a Shown<'a>, state: &'a State) -> Listing<'a> {
    let items = shown.items(state);
    let is_shown =
        |column: &&ProcessColumn| **column != ProcessColumn::HostName || shown.views.len() > 1;
    let columns: Vec<ProcessColumn> = state.columns.iter().filter(is_shown).copied().collect();
    let is_chart = |(_, column): &(usize, &ProcessColumn)| **column == ProcessColumn::History;
    let sorted = columns.iter().position(|column| order_of(*column) == Some(state.order));
    let mut specs: Vec<_> = columns.iter().map(|column| column.spec()).collect();
    if state.baseline.is_some() {
        let used = columns.iter().position(|column| *column == ProcessColumn::Used);
        used.and_then(|index| specs.get_mut(index)).into_iter().for_each(|it| it.title = "ADDED");
    }
    let charts = columns.iter().enumerate().filter(is_chart).map(|(index, _)| index).collect();
    let id = |item: &Item| match item {
        Item::Group(label, _) => id_of(label),
        Item::Process(host, index, _) => {
            id_of((*host, shown.row(*host, *index).map(|row| row.process.key)))
        }
    };
    let row = move |item: &Item| match item {
        Item::Group(label, totals) => Row {
            cells: columns
                .iter()
                .map(|column| processes::group_cell(*column, label, totals))
                .collect(),
            tone: if totals.leaking > 0 { Tone::Warning } else { Tone::Title },
            target: Target::Group(label.clone()),
        },
        Item::Process(host, row, depth) => {
            process_row(shown, state, &columns, (*host, *row, *depth))
        }
    };
    let sorted = sorted.map(|index| (index, state.is_reversed));
    let empty = empty_text(state, "No GPU memory activity yet.");
    Listing { charts, sorted, ..Listing::of(specs, items, empty, id, row) }
}

/// Returns the text of an empty list; `text`: without a filter.
fn empty_text(state: &State, text: &str) -> String {
    let is_filtered = !state.filter.is_empty() || state.only_leaks;
    if is_filtered { "Nothing matches; Esc shows all processes." } else { text }.to_owned()
}

fn process_row(
    shown: &Shown<'_>,
    state: &State,
    columns: &[ProcessColumn],
    (host, index, depth): (usize, usize, usize),
) -> Row {
    let Some(row) = shown.row(host, index) else { return Row::default() };
    let usage = shown.usage(host, |usage, until| usage.process(row.process.key, until));
    let Some(of) = shown.cells(host, row, &usage, state) else { return Row::default() };
    let cell = |column: &ProcessColumn| {
        let text = processes::cell(*column, row, &of);
        match column {
            ProcessColumn::Program if depth > 0 => format!("{}{text}", "  ".repeat(depth)),
            _ => text,
        }
    };
    let tone = match row.state {
        ProcessState::Leaks(_) => Tone::Alarm,
        ProcessState::TooEarly(_) | ProcessState::Growing => Tone::Warning,
        ProcessState::Steady => Tone::Plain,
        ProcessState::Ended => Tone::Dim,
    };
    let target = Target::Process { host, key: row.process.key };
    Row { cells: columns.iter().map(cell).collect(), tone, target }
}

fn suspects<'a>(shown: &'a Shown<'a>, state: &'a State) -> Listing<'a> {
    let all = shown.views.iter().enumerate();
    let all = all.flat_map(|(host, view)| view.leaks.iter().enumerate().map(move |it| (host, it)));
    let matches = |host: usize, index: usize, leak: &Leak<'_>| {
        let rows = shown.views.get(host).into_iter().flat_map(|view| &view.processes);
        let mut rows = rows.filter(|row| row.leaks.contains(&index)).peekable();
        let cells = leaks::cells(index + 1, leak);
        // Processes that exited are not listed.
        process_filter::contains(&cells, &state.filter)
            && (rows.peek().is_none()
                || rows.any(|row| process_filter::compares(row, &state.filter)))
    };
    let found: Vec<(usize, usize, &Leak<'_>)> = all
        .map(|(host, (index, leak))| (host, index, leak))
        .filter(|(host, index, leak)| matches(*host, *index, leak))
        .collect();
    let wait = shown.views.iter().filter_map(|view| view.wait).max();
    let empty = match wait {
        Some(wait) => {
            format!("Too early to tell: {} to go.", formats::report::view::duration_words(wait))
        }
        None => empty_text(state, "No leak found."),
    };
    Listing::of(
        leaks::COLUMNS.to_vec(),
        found,
        empty,
        |(host, _, leak)| id_of((*host, leak_id(leak))),
        |(host, number, leak)| Row {
            cells: leaks::cells(number + 1, leak),
            tone: Tone::Alarm,
            target: Target::Leak { host: *host, id: leak_id(leak) },
        },
    )
}

/// Returns the rows of all processes that pass the filter.
fn wanted<'a>(
    shown: &'a Shown<'a>,
    state: &State,
) -> Vec<(usize, &'a engine::view::ProcessRow<'a>)> {
    let items = shown.items(state).into_iter();
    let found = items.filter_map(|item| match item {
        Item::Process(host, index, _) => Some((host, shown.row(host, index)?)),
        Item::Group(..) => None,
    });
    found.collect()
}

fn of_tensors<'a>(shown: &'a Shown<'a>, state: &'a State) -> Listing<'a> {
    let mut rows = Vec::new();
    for (host, row) in wanted(shown, state) {
        for view in &row.process.allocators {
            rows.extend(view.pools.iter().map(|pool| (host, row, view, Some(pool))));
            if view.pools.is_empty() {
                rows.push((host, row, view, None));
            }
        }
    }
    Listing::of(
        allocators::COLUMNS.to_vec(),
        rows,
        empty_text(state, "No process uses an allocator that is known, such as PyTorch's."),
        |(host, row, view, pool)| {
            let pool = pool.map(|pool| (pool.device, pool.pool));
            id_of((*host, row.process.key, view.allocator, pool))
        },
        |(host, row, view, pool)| {
            let unavailable = || allocators::unavailable_cells(row, view);
            let cells = pool.map_or_else(unavailable, |pool| allocators::cells(row, view, pool));
            plain_row(cells, *host, row.process.key)
        },
    )
}

fn of_objects<'a>(shown: &'a Shown<'a>, state: &'a State) -> Listing<'a> {
    let mut rows = Vec::new();
    for (host, row) in wanted(shown, state) {
        rows.extend(row.process.objects.iter().map(|view| (host, row, view)));
    }
    rows.sort_by_key(|(_, _, view)| Reverse(view.live));
    Listing::of(
        objects::COLUMNS.to_vec(),
        rows,
        empty_text(state, "No stream, event, graph or module was created yet."),
        |(host, row, view)| id_of((*host, row.process.key, view.kind)),
        |(host, row, view)| plain_row(objects::cells(row, view), *host, row.process.key),
    )
}

fn of_kernels<'a>(shown: &'a Shown<'a>, state: &'a State) -> Listing<'a> {
    let mut rows = Vec::new();
    let mut processes = shown.frame.hosts.iter().flat_map(|host| &host.snapshot.processes);
    let empty = match processes.any(|process| process.activity.is_some()) {
        true => "No kernel was launched and nothing was copied yet.",
        false => "Launches and copies are not counted; --kernels counts them.",
    };
    for (host, row) in wanted(shown, state) {
        let Some(activity) = &row.process.activity else { continue };
        let of_kernels = activity.kernels.iter().map(Ok);
        for one in of_kernels.chain(activity.copies.iter().map(Err)) {
            rows.push((host, row, activity.window, one));
        }
    }
    let count = |one: &Result<&engine::snapshot::KernelView, &engine::snapshot::CopyView>| match one
    {
        Ok(kernel) => kernel.launches,
        Err(copy) => copy.calls,
    };
    rows.sort_by_key(|(.., one)| Reverse(count(one)));
    Listing::of(
        kernels::COLUMNS.to_vec(),
        rows,
        empty_text(state, empty),
        |(host, row, _, one)| {
            let key = row.process.key;
            match one {
                Ok(kernel) => id_of((*host, key, &kernel.name, format!("{:?}", kernel.target))),
                Err(copy) => id_of((*host, key, copy.direction.name(), copy.asynchronous)),
            }
        },
        |(host, row, window, one)| {
            let cells = match one {
                Ok(kernel) => kernels::kernel_cells(row, kernel, *window),
                Err(copy) => kernels::copy_cells(row, copy, *window),
            };
            plain_row(cells, *host, row.process.key)
        },
    )
}

/// Returns what happened, newest first: what was seen here, then what agents have written.
pub(crate) fn all_incidents<'a>(shown: &'a Shown<'a>) -> Vec<(usize, Cow<'a, Incident>)> {
    let Shown { history, frame, number, .. } = shown;
    let seen = history.incidents(*number);
    let seen = seen.map(|(host, at, one)| (*at, *host, Cow::Borrowed(one)));
    let marks = history.marks(*number).filter_map(|(host, at, mark)| {
        let of = frame.hosts.get(*host)?;
        Some((*at, *host, Cow::Owned(incidents::of_mark(mark, &of.snapshot, &of.context.clock))))
    });
    let mut all: Vec<_> = seen.chain(marks).collect();
    all.sort_by_key(|(at, ..)| Reverse(*at));
    let written = frame
        .hosts
        .iter()
        .enumerate()
        .flat_map(|(host, it)| it.incidents.iter().map(move |one| (host, Cow::Borrowed(one))));
    all.into_iter().map(|(_, host, one)| (host, one)).chain(written).collect()
}

fn of_incidents<'a>(shown: &'a Shown<'a>) -> Listing<'a> {
    Listing::of(
        incidents::COLUMNS.to_vec(),
        all_incidents(shown),
        "No out-of-memory error, no anomaly and no mark so far.",
        |(host, one)| id_of((*host, &one.time, &one.kind, one.pid, &one.summary)),
        |(_, one)| Row {
            cells: one.cells(),
            tone: match &*one.kind {
                "mark" => Tone::Plain,
                "anomaly" => Tone::Warning,
                _ => Tone::Alarm,
            },
            target: Target::Nothing,
        },
    )
}

/// Returns the sites of a process, those of tensors first.
pub(crate) fn sites_of<'a>(
    shown: &'a Shown<'a>,
    host: usize,
    process: &'a ProcessView,
) -> Vec<(&'a SiteView, bool)> {
    let snapshot = shown.frame.hosts.get(host).map(|host| &host.snapshot);
    let pid = Some(process.key.pid);
    let is_own = |site: &&SiteView| {
        site.processes.is_empty() || site.processes.iter().any(|one| one.pid == pid)
    };
    let of_tensors = snapshot.into_iter().flat_map(|it| &it.tensor_sites).filter(is_own);
    let own = process.sites.iter().map(|site| (site, false));
    of_tensors.map(|site| (site, true)).chain(own).collect()
}

/// Returns the worst verdict on each site of a process.
pub(crate) fn verdicts<'a>(
    shown: &'a Shown<'a>,
    host: usize,
    process: &ProcessView,
) -> HashMap<SiteName, &'a SiteVerdict> {
    let snapshot = shown.frame.hosts.get(host).map(|host| &host.snapshot);
    let all = snapshot.into_iter().flat_map(|it| it.suspects.iter().chain(&it.other_verdicts));
    let mut found: HashMap<SiteName, &SiteVerdict> = HashMap::new();
    for one in all.filter(|one| one.pid == Some(process.key.pid)) {
        let is_worse = |known: &&SiteVerdict| {
            let rank = |it: &SiteVerdict| (it.verdict == Verdict::Leak, it.resource.is_bytes());
            rank(one) > rank(known)
        };
        if found.get(&one.site).is_none_or(is_worse) {
            found.insert(one.site, one);
        }
    }
    found
}

fn of_sites<'a>(
    shown: &'a Shown<'a>,
    state: &'a State,
    host: usize,
    key: ProcessKey,
) -> Option<Listing<'a>> {
    let process = shown.frame.hosts.get(host)?.process(key)?;
    let verdicts = verdicts(shown, host, process);
    let baseline = state.baseline.as_ref().and_then(|frame| frame.hosts.get(host));
    let baseline = baseline.map(|host| host.snapshot.at);
    let mut found = sites_of(shown, host, process);
    if !state.site_filter.is_empty() {
        let cells = |site: &SiteView| sites::cells(site, verdicts.get(&site.name).copied(), None);
        found.retain(|(site, _)| process_filter::contains(&cells(site), &state.site_filter));
    }
    let order = state.site_order;
    found.sort_by_cached_key(|(site, _)| order.rank(site, verdicts.get(&site.name).copied()));
    let chart = sites::COLUMNS.iter().position(|spec| spec.title == "HISTORY");
    let mut columns = sites::COLUMNS.to_vec();
    if baseline.is_some() {
        columns.iter_mut().filter(|spec| spec.title == "LIVE").for_each(|it| it.title = "ADDED");
    }
    let sorted = columns.iter().position(|spec| site_order_of(spec.title) == Some(order));
    let empty = empty_sites(state);
    let id = |(site, tensors): &(&SiteView, bool)| id_of((site.name, *tensors));
    let row = move |(site, is_tensors): &(&SiteView, bool)| {
        let verdict = verdicts.get(&site.name).copied();
        Row {
            cells: sites::cells(site, verdict, baseline),
            tone: match verdict.map(|one| one.verdict) {
                Some(Verdict::Leak) => Tone::Alarm,
                Some(Verdict::RampUp) => Tone::Warning,
                _ => Tone::Plain,
            },
            target: Target::Site { name: site.name, is_tensors: *is_tensors },
        }
    };
    let charts = chart.into_iter().collect();
    let sorted = sorted.map(|index| (index, false));
    Some(Listing { charts, sorted, ..Listing::of(columns, found, empty, id, row) })
}

fn empty_sites(state: &State) -> &'static str {
    match state.held.is_some() {
        _ if !state.site_filter.is_empty() => "Nothing matches; Esc shows everything.",
        true => "Sites were not listed when the screen was frozen; Space goes on.",
        false => "Nothing is listed yet.",
    }
}

/// Returns what a process holds by function, thread or library.
fn memory_by<'a>(state: &'a State, by: MemoryBy, process: &'a ProcessView) -> Option<Listing<'a>> {
    let is_wanted = |cells: &[String]| process_filter::contains(cells, &state.site_filter);
    let plain = |cells, tone| Row { cells, tone, target: Target::Nothing };
    let empty = empty_sites(state);
    Some(match by {
        MemoryBy::Site => return None,
        MemoryBy::Function => {
            let mut rows = functions(process.sites.iter(), state.unfolded);
            rows.retain(|row| is_wanted(&memory_of::function_cells(row)));
            let id = |row: &FunctionRow<'_>| id_of((&row.frame.function, &row.frame.file));
            let tone = |row: &FunctionRow<'_>| match (row.is_library, row.own) {
                (true, _) => Tone::Dim,
                (false, 0) => Tone::Plain,
                (false, _) => Tone::Strong,
            };
            let row = move |row: &FunctionRow<'_>| plain(memory_of::function_cells(row), tone(row));
            Listing::of(memory_of::FUNCTION_COLUMNS.to_vec(), rows, empty, id, row)
        }
        MemoryBy::Thread => {
            let mut rows = memory_of::threads(process);
            rows.retain(|thread| is_wanted(&memory_of::thread_cells(thread)));
            let row = move |it: &&ThreadView| plain(memory_of::thread_cells(it), Tone::Plain);
            Listing::of(memory_of::THREAD_COLUMNS.to_vec(), rows, empty, |it| id_of(it.tid), row)
        }
        MemoryBy::Library => {
            let mut rows: Vec<_> = process.libraries.iter().collect();
            rows.retain(|library| is_wanted(&memory_of::library_cells(library)));
            let row = move |it: &&LibraryView| plain(memory_of::library_cells(it), Tone::Plain);
            let id = |it: &&LibraryView| id_of(&it.library);
            Listing::of(memory_of::LIBRARY_COLUMNS.to_vec(), rows, empty, id, row)
        }
    })
}

fn of_allocations<'a>(
    shown: &'a Shown<'a>,
    host: usize,
    key: ProcessKey,
    site: SiteName,
) -> Option<Listing<'a>> {
    let process = shown.frame.hosts.get(host)?.process(key)?;
    let threads = process.threads.iter();
    let mut found: Vec<_> = threads
        .flat_map(|thread| thread.allocations.iter().map(move |one| (one, thread)))
        .filter(|(one, _)| one.site == site)
        .collect();
    found.sort_by_key(|(one, _)| (Reverse(one.bytes), Reverse(one.age)));
    Some(Listing::of(
        allocations::COLUMNS.to_vec(),
        found,
        "None of the largest allocations of the process is from this site.",
        |(one, _)| id_of(one.key),
        |(one, thread)| Row {
            cells: allocations::cells(one, thread),
            tone: Tone::Plain,
            target: Target::Nothing,
        },
    ))
}
