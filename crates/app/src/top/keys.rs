//! What keys and the mouse do.

use std::time::Duration;

use engine::view::{GroupBy, ProcessOrder, SiteOrder};
use formats::report::tables::processes::ProcessColumn;
use formats::report::tables::sites;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::pages::listing::{Cursor, Target};
use super::state::{MemoryBy, Overlay, Page, State, Tab};

/// Longest filter.
const MAX_FILTER_CHARS: usize = 100;

/// Shortest and longest interval.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));

/// Slowest and fastest replay.
const SPEEDS: (f64, f64) = (1.0 / 16.0, 4096.0);

/// Frames that `{` and `}` skip.
const LONG_STEP: isize = 10;

/// What the loop has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Draw again.
    Draw,
    /// Nothing.
    Nothing,
    /// Stop the process, as Ctrl-Z does.
    Suspend,
}

/// Lines of the help: keys and what they do.
pub(crate) const HELP: &[(&str, &str)] = &[
    ("↑ ↓ j k, PgUp PgDn, Home End", "move"),
    ("Enter →, Esc ←", "into: sites, call stack, allocations; back"),
    ("Tab, 1 to 6", "next list; processes, suspects, tensors, objects, kernels, incidents"),
    ("s, < >, I", "sort: urgency, used, growth, time to full, age, count; reverse"),
    ("/", "filter: texts such as a user, program or line, and used>1G, growth>0, age<10m"),
    ("l", "only what leaks"),
    ("m", "memory of a process by site, function, thread or library"),
    ("u c g p H", "group by user, container or pod, GPU, process tree, host; Enter folds"),
    ("o", "choose columns"),
    ("Space", "freeze the screen; counting goes on. A replay stops"),
    ("[ ] { }, End", "rewind and forward by 1 or 10 frames; End: now"),
    ("b", "baseline: show what was added since now; again: all"),
    ("+ -", "interval; of a replay, its speed"),
    ("e", "call stack with or without frames of libraries"),
    ("a", "suspects with evidence and advice"),
    ("t", "tensors and caches"),
    ("T, A", "theme dark, light, mono; ASCII only"),
    ("mouse", "click: select, again: open; on a title: sort; wheel: scroll"),
    ("? h, q", "help; quit"),
];

/// Handles an event.
pub(crate) fn handle(state: &mut State, event: &Event) -> Action {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => on_key(state, *key),
        Event::Mouse(mouse) => on_mouse(state, *mouse),
        Event::Resize(..) => Action::Draw,
        _ => Action::Nothing,
    }
}

fn on_key(state: &mut State, key: KeyEvent) -> Action {
    state.message = None;
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        match key.code {
            KeyCode::Char('c') => state.quit = true,
            KeyCode::Char('z') => return Action::Suspend,
            KeyCode::Char('d') => step(state, 1, true),
            KeyCode::Char('u') => step(state, -1, true),
            _ => {}
        }
        return Action::Draw;
    }
    if state.is_typing {
        type_filter(state, key.code);
    } else if !move_cursor(state, key.code) && !in_overlay(state, key.code) {
        choose(state, key.code);
    }
    Action::Draw
}

fn type_filter(state: &mut State, key: KeyCode) {
    let is_end = matches!(key, KeyCode::Enter | KeyCode::Esc);
    state.is_typing &= !is_end;
    let Some(filter) = state.page_filter() else { return };
    match key {
        KeyCode::Esc => filter.clear(),
        KeyCode::Backspace => drop(filter.pop()),
        KeyCode::Char(c) if filter.chars().count() < MAX_FILTER_CHARS && !c.is_control() => {
            filter.push(c);
        }
        _ => {}
    }
}

/// Moves by rows, or by pages.
fn step(state: &mut State, by: isize, is_page: bool) {
    let rows = isize::try_from(state.page_height.saturating_sub(1).max(1)).unwrap_or(1);
    if let Some(cursor) = state.cursor() {
        cursor.step(by * if is_page { rows } else { 1 });
    }
}

/// Handles keys that move the selection; returns whether this is one.
fn move_cursor(state: &mut State, key: KeyCode) -> bool {
    match key {
        KeyCode::Up | KeyCode::Char('k') => step(state, -1, false),
        KeyCode::Down | KeyCode::Char('j') => step(state, 1, false),
        KeyCode::PageUp => step(state, -1, true),
        KeyCode::PageDown => step(state, 1, true),
        KeyCode::Home => state.cursor().into_iter().for_each(|it| *it = Cursor::default()),
        KeyCode::End if state.held.as_ref().is_some_and(|held| held.is_rewound) => {
            state.held = None;
        }
        KeyCode::End => step(state, isize::MAX / 1024, false),
        _ => return false,
    }
    true
}

/// Handles keys of what is in front of the page; returns whether something is.
fn in_overlay(state: &mut State, key: KeyCode) -> bool {
    let Some((overlay, cursor)) = state.overlay else { return false };
    match (overlay, key) {
        (Overlay::Columns, KeyCode::Char(' ') | KeyCode::Enter) => {
            let Some(column) = ProcessColumn::ALL.get(cursor.index).copied() else { return true };
            let is_shown = state.columns.contains(&column);
            let wanted = |one: &ProcessColumn| {
                if *one == column { !is_shown } else { state.columns.contains(one) }
            };
            state.columns = ProcessColumn::ALL.into_iter().filter(wanted).collect();
        }
        (_, KeyCode::Char('q' | '?' | 'h' | 'o') | KeyCode::Esc | KeyCode::F(1)) => {
            state.overlay = None;
        }
        _ => {}
    }
    true
}

fn choose(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Char('q') => state.quit = true,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => open_overlay(state, Overlay::Help),
        KeyCode::Char('o') => open_overlay(state, Overlay::Columns),
        KeyCode::Enter | KeyCode::Right => enter(state),
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => back(state),
        KeyCode::Tab => next_tab(state, 1),
        KeyCode::BackTab => next_tab(state, -1),
        KeyCode::Char(digit @ '1'..='6') => {
            let index = digit.to_digit(10).unwrap_or(1) as usize - 1;
            Tab::ALL.get(index).into_iter().for_each(|tab| state.show_tab(*tab));
        }
        KeyCode::Char('a') => state.show_tab(Tab::Suspects),
        KeyCode::Char('t') => state.show_tab(Tab::Tensors),
        KeyCode::Char('/') => state.is_typing = state.page_filter().is_some(),
        KeyCode::Char('m') => {
            state.memory_by = next(&MemoryBy::ALL, state.memory_by, 1);
        }
        KeyCode::Char('l') => state.only_leaks = !state.only_leaks,
        KeyCode::Char('s' | '>') => sort(state, 1),
        KeyCode::Char('<') => sort(state, -1),
        KeyCode::Char('I') => state.is_reversed = !state.is_reversed,
        KeyCode::Char('u') => group(state, GroupBy::User),
        KeyCode::Char('c') => group(state, GroupBy::Container),
        KeyCode::Char('g') => group(state, GroupBy::Gpu),
        KeyCode::Char('p') => group(state, GroupBy::Tree),
        KeyCode::Char('H') => group(state, GroupBy::Host),
        KeyCode::Char('e') => state.unfolded = !state.unfolded,
        KeyCode::Char('T') => state.theme = state.theme.next(),
        KeyCode::Char('A') => state.is_ascii = !state.is_ascii,
        _ => control_time(state, key),
    }
}

/// Handles keys that stop or change time.
fn control_time(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Char(' ') => {
            state.held = if state.held.is_some() { None } else { state.history.freeze() };
        }
        KeyCode::Char('[') => state.rewind(1),
        KeyCode::Char(']') => state.rewind(-1),
        KeyCode::Char('{') => state.rewind(LONG_STEP),
        KeyCode::Char('}') => state.rewind(-LONG_STEP),
        KeyCode::Char('b') => {
            let now = state.shown().map(|(_, frame)| std::sync::Arc::clone(frame));
            state.baseline = if state.baseline.is_some() { None } else { now };
        }
        KeyCode::Char('+' | '=') => faster(state, true),
        KeyCode::Char('-') => faster(state, false),
        _ => {}
    }
}

/// Changes the speed of a replay, or else the interval.
fn faster(state: &mut State, is_plus: bool) {
    if state.is_replay {
        let speed = if is_plus { state.speed * 2.0 } else { state.speed / 2.0 };
        state.speed = speed.clamp(SPEEDS.0, SPEEDS.1);
        state.message = Some(format!("speed {}x", state.speed));
    } else {
        let interval = if is_plus { state.interval * 2 } else { state.interval / 2 };
        state.interval = interval.clamp(INTERVALS.0, INTERVALS.1);
        state.message = Some(format!("interval {:?}", state.interval));
    }
}

fn open_overlay(state: &mut State, overlay: Overlay) {
    state.overlay = Some((overlay, Cursor::default()));
}

fn next_tab(state: &mut State, by: isize) {
    state.show_tab(next(&Tab::ALL, state.tab(), by));
}

/// Returns the value `by` places after the current one, in a circle.
fn next<T: Copy + PartialEq>(all: &[T], now: T, by: isize) -> T {
    let index = all.iter().position(|one| *one == now).unwrap_or(0);
    let length = isize::try_from(all.len()).unwrap_or(1);
    let index = index.saturating_add_signed(by.rem_euclid(length)) % all.len();
    all.get(index).copied().unwrap_or(now)
}

fn sort(state: &mut State, by: isize) {
    let name = match state.page() {
        Page::Sites { .. } if state.memory_by == MemoryBy::Site => {
            state.site_order = next(&SiteOrder::ALL, state.site_order, by);
            state.site_order.name()
        }
        Page::Tab(Tab::Processes) => {
            state.order = next(&ProcessOrder::ALL, state.order, by);
            state.order.name()
        }
        _ => return,
    };
    state.message = Some(format!("sorted by {name}"));
}

fn group(state: &mut State, by: GroupBy) {
    state.group_by = if state.group_by == by { GroupBy::Nothing } else { by };
    state.collapsed.clear();
    state.message = Some(format!("grouped by {}", state.group_by.name()));
}

/// Opens what is behind the selected row.
fn enter(state: &mut State) {
    match (state.page(), state.selected.clone()) {
        (Page::Tab(_), Target::Process { host, key }) => state.open(Page::Sites { host, key }),
        (Page::Tab(_), Target::Leak { host, id }) => state.open(Page::Leak { host, id }),
        (Page::Tab(_), Target::Group(label)) => toggle(state, label),
        (Page::Sites { host, key }, Target::Site { name, .. }) => {
            state.open(Page::Stack { host, key, site: name });
        }
        (Page::Stack { host, key, site }, _) => state.open(Page::Allocations { host, key, site }),
        _ => {}
    }
}

/// Hides the members of a group, or shows them again.
fn toggle(state: &mut State, group: String) {
    if !state.collapsed.remove(&group) {
        state.collapsed.insert(group);
    }
}

/// Goes back, or drops a filter.
fn back(state: &mut State) {
    if state.page_filter().is_some_and(|filter| !std::mem::take(filter).is_empty()) {
        return;
    }
    if state.pages.len() > 1 {
        state.pages.pop();
    } else {
        state.only_leaks = false;
    }
}

fn on_mouse(state: &mut State, mouse: MouseEvent) -> Action {
    match mouse.kind {
        MouseEventKind::ScrollUp => step(state, -3, false),
        MouseEventKind::ScrollDown => step(state, 3, false),
        MouseEventKind::Down(MouseButton::Left) => click(state, mouse.column, mouse.row),
        _ => return Action::Nothing,
    }
    Action::Draw
}

fn click(state: &mut State, x: u16, y: u16) {
    if state.overlay.take().is_some() {
        return;
    }
    let areas = state.areas.clone();
    let is_in = |start: u16, end: u16| (start..end).contains(&x);
    if areas.tabs_line == Some(y) {
        let found = areas.tabs.iter().find(|(start, end, _)| is_in(*start, *end));
        found.into_iter().for_each(|(_, _, tab)| state.show_tab(*tab));
    } else if areas.titles == Some(y) {
        let found = areas.columns.iter().find(|(start, end, _)| is_in(*start, *end));
        found.into_iter().for_each(|(_, _, column)| sort_by_column(state, *column));
    } else if (areas.rows.0..areas.rows.0.saturating_add(areas.rows.1)).contains(&y) {
        let row = usize::from(y - areas.rows.0);
        let Some(cursor) = state.cursor() else { return };
        let index = cursor.offset + row;
        if cursor.index == index {
            enter(state);
        } else {
            cursor.choose(index);
        }
    }
}

/// Sorts by the column that was clicked; again: in reverse.
fn sort_by_column(state: &mut State, column: usize) {
    if matches!(state.page(), Page::Sites { .. }) && state.memory_by == MemoryBy::Site {
        let order = sites::COLUMNS.get(column).and_then(|spec| site_order_of(spec.title));
        state.site_order = order.unwrap_or(state.site_order);
    }
    if state.page() != Page::Tab(Tab::Processes) {
        return;
    }
    // The column of hosts is shown only if there are several.
    let hosts = state.history.newest().map_or(1, |(_, frame)| frame.hosts.len());
    let is_shown = |column: &&ProcessColumn| **column != ProcessColumn::HostName || hosts > 1;
    let order = state.columns.iter().filter(is_shown).nth(column).copied().and_then(order_of);
    let Some(order) = order else { return };
    state.is_reversed = state.order == order && !state.is_reversed;
    state.order = order;
}

/// Returns the order that a column of sites stands for.
pub(crate) fn site_order_of(title: &str) -> Option<SiteOrder> {
    match title {
        "LIVE" => Some(SiteOrder::Live),
        "ALLOCS" => Some(SiteOrder::Count),
        "LIFE" => Some(SiteOrder::Lifetime),
        "GROWTH/H" => Some(SiteOrder::Growth),
        "VERDICT" => Some(SiteOrder::Urgency),
        _ => None,
    }
}

/// Returns the order that a column stands for.
pub(crate) const fn order_of(column: ProcessColumn) -> Option<ProcessOrder> {
    match column {
        ProcessColumn::Used => Some(ProcessOrder::Used),
        ProcessColumn::Growth => Some(ProcessOrder::Growth),
        ProcessColumn::Full => Some(ProcessOrder::TimeUntilFull),
        ProcessColumn::Age => Some(ProcessOrder::Age),
        ProcessColumn::Count => Some(ProcessOrder::Count),
        ProcessColumn::Verdict => Some(ProcessOrder::Urgency),
        _ => None,
    }
}
