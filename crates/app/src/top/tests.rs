//! Screens of a recording from a GPU, with the keys that lead to them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::model::{Pid, ProcessIdentity, ProcessKey};
use engine::snapshot::{ProcessView, Snapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, MouseButton, MouseEventKind};
use ratatui::style::Color;

use super::draw::draw;
use super::frame::{HostFrame, TopFrame};
use super::keys::handle;
use super::once::lines;
use super::pages::source_lines::SourceLines;
use super::source::RequestCell;
use super::source::replay::ReplaySource;
use super::state::{Page, State, Tab};
use super::theme::Theme;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A view of a recording, replayed second by second.
struct Session {
    state: State,
    source: ReplaySource,
    requests: RequestCell,
    terminal: Terminal<TestBackend>,
}

impl Session {
    fn new(file: &str, width: u16, height: u16) -> Self {
        let mut state = State::new(Theme::Dark, false, Duration::from_secs(1), 1.0);
        (state.source, state.is_replay) = ("test".to_owned(), true);
        Self {
            state,
            source: ReplaySource::open(&fixture(file)).unwrap(),
            requests: RequestCell::new(Duration::from_secs(1), 1.0),
            terminal: Terminal::new(TestBackend::new(width, height)).unwrap(),
        }
    }

    /// Replays a number of seconds.
    fn advance(&mut self, seconds: usize) {
        for _ in 0..seconds {
            let details = self.state.details();
            self.requests.update(|request| request.details = details);
            let frame = self.source.step(&self.requests).unwrap();
            self.state.push(frame);
        }
    }

    fn draw(&mut self) -> Vec<String> {
        let sources = SourceLines::default();
        let Self { state, terminal, .. } = self;
        terminal.draw(|frame| draw(frame.buffer_mut(), state, &sources)).unwrap();
        lines(self.terminal.backend().buffer())
    }

    /// Presses keys, drawing after each as the view does.
    fn press(&mut self, keys: &[KeyCode]) {
        self.draw();
        for key in keys {
            handle(&mut self.state, &Event::Key(KeyEvent::from(*key)));
            self.draw();
        }
    }

    fn chars(&mut self, keys: &str) {
        let keys: Vec<KeyCode> = keys.chars().map(KeyCode::Char).collect();
        self.press(&keys);
    }

    fn click(&mut self, x: u16, y: u16) {
        let event = ratatui::crossterm::event::MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column: x,
            row: y,
            modifiers: ratatui::crossterm::event::KeyModifiers::NONE,
        };
        handle(&mut self.state, &Event::Mouse(event));
        self.draw();
    }

    /// Compares the screen with a stored one.
    fn assert_screen(&mut self, name: &str) {
        // The directory of the user who recorded the file, replaced by one of the same length.
        let text = self.draw().join("\n").replace(concat!("/", "root/"), "/data/") + "\n";
        let file = fixture(&format!("top/{name}.txt"));
        if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let stored = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, stored, "{name}: run with VRAMSCOPE_UPDATE=1 if this is intended");
    }

    fn assert_shows(&mut self, text: &str) {
        let screen = self.draw().join("\n");
        assert!(screen.contains(text), "{text:?} is not on the screen:\n{screen}");
    }
}

const PYTORCH: &str = "h200-leaks/pytorch.arrows";

/// The recording at its end, where its leaks are known.
fn at_the_end(width: u16, height: u16) -> Session {
    let mut session = Session::new(PYTORCH, width, height);
    session.advance(43);
    session
}

#[test]
fn screens_match_at_three_sizes() {
    for (width, height) in [(40, 12), (80, 24), (200, 60)] {
        at_the_end(width, height).assert_screen(&format!("processes-{width}x{height}"));
    }
}

#[test]
fn drill_down_matches_from_process_to_allocations() {
    let mut session = at_the_end(80, 24);
    session.press(&[KeyCode::Enter]);
    session.advance(1);
    session.assert_screen("sites-80x24");
    session.press(&[KeyCode::Enter]);
    session.assert_screen("stack-80x24");
    session.chars("e");
    session.assert_shows("libc10_cuda.so");
    session.press(&[KeyCode::Enter]);
    assert!(matches!(session.state.page(), Page::Allocations { .. }));
    session.press(&[KeyCode::Esc, KeyCode::Esc, KeyCode::Esc]);
    assert_eq!(session.state.page(), Page::Tab(Tab::Processes));
}

#[test]
fn tabs_match() {
    let mut session = at_the_end(80, 24);
    for (key, name) in [("2", "suspects"), ("3", "tensors"), ("4", "objects"), ("6", "incidents")] {
        session.chars(key);
        session.assert_screen(&format!("{name}-80x24"));
    }
    session.chars("5");
    session.assert_shows("--kernels");
    session.chars("2");
    session.press(&[KeyCode::Enter]);
    session.assert_shows("call stack, innermost first");
}

#[test]
fn help_and_columns_are_shown_on_small_screens() {
    let mut session = at_the_end(40, 12);
    session.chars("?");
    session.assert_shows("into: sites, call stack");
    session.press(&[KeyCode::Esc]);
    session.chars("o");
    session.press(&[KeyCode::Down, KeyCode::Down, KeyCode::Char(' '), KeyCode::Esc]);
    let has_user = session.draw().iter().any(|line| line.contains("USER"));
    assert!(!has_user);
}

#[test]
fn processes_are_filtered_sorted_and_grouped() {
    let mut session = at_the_end(120, 30);
    session.chars("/oom");
    session.press(&[KeyCode::Enter]);
    session.assert_shows("oom.py");
    assert!(!session.draw().join("\n").contains("torch_graphs.py"));
    session.press(&[KeyCode::Esc]);
    session.chars("l");
    assert!(!session.draw().join("\n").contains("oom.py"));
    session.chars("/no such process");
    session.press(&[KeyCode::Enter, KeyCode::Char('2')]);
    session.assert_shows("Nothing matches; Esc shows all processes.");
    session.press(&[KeyCode::Esc, KeyCode::Char('1')]);
    session.chars("lu");
    session.assert_shows("2 of 5 leak");
    // Enter folds the group.
    session.press(&[KeyCode::Home, KeyCode::Enter]);
    assert!(!session.draw().join("\n").contains("oom.py"));
    session.chars("us");
    session.assert_shows("sorted by used");
    let used_first = session.draw().iter().find(|line| line.contains(".py")).cloned().unwrap();
    session.chars("I");
    let used_last = session.draw().iter().find(|line| line.contains(".py")).cloned().unwrap();
    assert_ne!(used_first, used_last);
}

#[test]
fn memory_of_a_process_is_split_sorted_and_filtered() {
    let mut session = at_the_end(120, 30);
    session.press(&[KeyCode::Enter]);
    session.advance(1);
    // Sites: sorting and filtering are their own.
    let first = |session: &mut Session| {
        let screen = session.draw();
        let titles = screen.iter().position(|line| line.starts_with("PLACE")).unwrap();
        screen[titles + 1].clone()
    };
    assert!(first(&mut session).contains(":16 capture"));
    session.chars("ssss");
    session.assert_shows("sorted by lifetime");
    assert!(first(&mut session).contains("periodic"), "{}", first(&mut session));
    session.chars("/matmul");
    session.press(&[KeyCode::Enter]);
    assert!(first(&mut session).contains("matmul"));
    assert!(session.state.filter.is_empty());
    session.press(&[KeyCode::Esc]);
    assert!(matches!(session.state.page(), Page::Sites { .. }));
    session.chars("m");
    session.assert_screen("functions-120x30");
    session.chars("m");
    session.assert_shows("› threads");
    session.assert_shows("device 10.7G");
    session.chars("m");
    session.assert_shows("› libraries");
    session.assert_shows("PyTorch");
    session.press(&[KeyCode::Esc]);
    session.chars("/used>1.7G torch");
    session.press(&[KeyCode::Enter]);
    session.assert_shows("torch_graphs.py");
    assert!(!session.draw().join("\n").contains("torch_loss_history.py"));
}

#[test]
fn narrow_screens_keep_lines_and_used_memory() {
    let mut session = at_the_end(40, 12);
    session.assert_shows("16.8 of 140.4 GiB");
    session.assert_shows("FULL IN 4 min");
    session.chars("2");
    session.assert_shows(":16,13 capt");
    session.press(&[KeyCode::Enter]);
    session.assert_shows("likely");
    session.press(&[KeyCode::Char('1'), KeyCode::Enter]);
    session.advance(1);
    session.assert_shows(".py:16 ");
    session.assert_shows(".py:13 ");
    session.chars("?");
    session.press(&[KeyCode::End]);
    session.assert_shows("note: ");
}

#[test]
fn frozen_and_rewound_screens_do_not_change() {
    let mut session = Session::new(PYTORCH, 100, 24);
    session.advance(20);
    session.chars(" ");
    let frozen = session.draw();
    session.advance(5);
    assert_eq!(session.draw()[1..], frozen[1..]);
    session.assert_shows("PAUSED 5.0s");
    session.chars("[[[");
    session.assert_shows("REWOUND 8.0s");
    let rewound = session.draw();
    session.advance(5);
    assert_eq!(session.draw()[1..], rewound[1..]);
    session.press(&[KeyCode::End]);
    assert!(!session.draw()[0].contains("REWOUND"));
    assert_ne!(session.draw()[1..], frozen[1..]);
}

/// Returns the newest frame `seconds` later, without processes.
fn without_processes(session: &Session, seconds: u64) -> TopFrame {
    let mut frame = TopFrame::clone(session.state.history.newest().unwrap().1);
    let snapshot = &mut frame.hosts[0].snapshot;
    snapshot.processes.clear();
    snapshot.at.0 += seconds * 1_000_000_000;
    frame
}

#[test]
fn frozen_screen_keeps_charts_of_processes_that_end() {
    let mut session = Session::new(PYTORCH, 100, 24);
    session.advance(20);
    session.press(&[KeyCode::Enter]);
    session.advance(1);
    session.chars(" ");
    let frozen = session.draw();
    assert!(frozen.iter().filter(|line| line.contains('█')).count() > 2, "{frozen:?}");
    // More than are kept for rewinding.
    for seconds in 1..2000 {
        session.state.push(without_processes(&session, seconds));
    }
    assert_eq!(session.draw()[1..], frozen[1..]);
    session.chars(" ");
    session.assert_shows("has exited");
}

#[test]
fn marks_are_shown_in_charts_and_lists() {
    use engine::model::{Mark, MarkKind, Timestamp};
    let mut session = Session::new(PYTORCH, 120, 30);
    session.advance(10);
    session.press(&[KeyCode::Enter]);
    session.advance(1);
    let Page::Sites { key, .. } = session.state.page() else { panic!("no process") };
    let mark = |at: Timestamp, pid: Pid, kind, label: &str| Mark {
        at,
        pid: (pid != Pid(0)).then_some(pid),
        kind,
        label: label.into(),
    };
    let newest = |session: &Session| TopFrame::clone(session.state.history.newest().unwrap().1);
    let mut frame = newest(&session);
    let snapshot = &mut frame.hosts[0].snapshot;
    snapshot.at.0 += 1_000_000;
    let at = snapshot.at;
    snapshot.marks = vec![
        // Longer ago than the charts reach.
        mark(Timestamp(1), key.pid, MarkKind::Point, "earlier"),
        mark(at, key.pid, MarkKind::Point, "epoch 1"),
        mark(at, Pid(1), MarkKind::Point, "of another"),
    ];
    session.state.push(frame);
    session.advance(9);
    let mut frame = newest(&session);
    frame.hosts[0].snapshot.at.0 += 1_000_000;
    frame.hosts[0].snapshot.marks = vec![
        // An agent repeats marks.
        mark(at, key.pid, MarkKind::Point, "epoch 1"),
        mark(frame.hosts[0].snapshot.at, Pid(0), MarkKind::Begin, "test\u{1b}[2J"),
    ];
    session.state.push(frame);
    session.advance(1);
    // A label without room is left out as a whole.
    let mut frame = newest(&session);
    frame.hosts[0].snapshot.at.0 += 1_000_000;
    let at = frame.hosts[0].snapshot.at;
    frame.hosts[0].snapshot.marks = vec![mark(at, Pid(0), MarkKind::Point, "epoch 2")];
    session.state.push(frame);
    session.assert_screen("marks-120x30");
    session.chars("6");
    let screen = session.draw();
    let marks: Vec<_> = screen.iter().filter(|line| line.contains(" mark ")).collect();
    // Of the list, and the newest one above.
    assert_eq!(marks.len(), 6, "{screen:?}");
    // Marks are not incidents.
    assert!(screen.iter().any(|line| line.ends_with("6 Incidents (1)")), "{screen:?}");
    session.chars("{");
    assert!(session.draw().join("\n").contains("epoch 1"));
    session.chars("[[[");
    assert!(!session.draw().join("\n").contains("epoch 1"));
}

#[test]
fn baseline_shows_what_was_added() {
    let mut session = Session::new(PYTORCH, 120, 24);
    session.advance(20);
    session.chars("b");
    session.assert_shows("ADDED");
    session.advance(20);
    session.assert_shows("BASELINE");
    let row = session.draw().into_iter().find(|line| line.contains("torch_graphs.py")).unwrap();
    assert!(row.contains(" +"), "{row}");
    session.chars("b");
    assert!(!session.draw().join("\n").contains("ADDED"));
}

#[test]
fn clicks_select_open_sort_and_switch() {
    let mut session = at_the_end(120, 30);
    let screen = session.draw();
    let titles = screen.iter().position(|line| line.contains("PROGRAM")).unwrap();
    let used = screen[titles].find("USED").unwrap();
    session.click(u16::try_from(used).unwrap(), u16::try_from(titles).unwrap());
    assert_eq!(session.state.order.name(), "used");
    let row = u16::try_from(titles + 2).unwrap();
    session.click(3, row);
    assert_eq!(session.state.page(), Page::Tab(Tab::Processes));
    session.click(3, row);
    assert!(matches!(session.state.page(), Page::Sites { .. }));
    session.press(&[KeyCode::Esc]);
    let tabs = session.draw().iter().position(|line| line.contains("Suspects")).unwrap();
    let x = session.draw()[tabs].find("Suspects").unwrap();
    session.click(u16::try_from(x).unwrap(), u16::try_from(tabs).unwrap());
    assert_eq!(session.state.tab(), Tab::Suspects);
}

#[test]
fn every_size_and_page_can_be_drawn() {
    let mut session = at_the_end(80, 24);
    for keys in ["1", "2", "3", "4", "5", "6", "1u", "g", "p", "?"] {
        session.chars(keys);
        for width in [1, 2, 7, 19, 20, 21, 33, 40, 61, 80, 133, 300] {
            for height in [1, 2, 4, 5, 6, 9, 12, 17, 18, 25, 60, 100] {
                session.terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                session.draw();
            }
        }
    }
}

#[test]
fn ascii_mono_has_neither_colors_nor_other_characters() {
    let mut session = at_the_end(80, 24);
    (session.state.is_ascii, session.state.theme) = (true, Theme::Mono);
    for tab in ["1", "2", "3", "6"] {
        session.chars(tab);
        for cell in &session.terminal.backend().buffer().content {
            assert!(cell.symbol().is_ascii(), "{:?}", cell.symbol());
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
        }
    }
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let hostile = "a\x1b[2J\x1b]0;t\x07\rb\n\u{9b}31m\u{202e}";
    let (program, user) = (Some(hostile.into()), Some(hostile.into()));
    let identity = ProcessIdentity { program, user, ..ProcessIdentity::default() };
    let key = ProcessKey { pid: Pid(7), start: 1 };
    let process = ProcessView { key, name: hostile.into(), identity, ..ProcessView::default() };
    let mut session = Session::new(PYTORCH, 120, 24);
    session.advance(1);
    let mut frame = TopFrame::clone(session.state.history.newest().unwrap().1);
    let host: &mut HostFrame = &mut frame.hosts[0];
    host.name = hostile.to_owned();
    host.snapshot = Snapshot { processes: vec![process], ..host.snapshot.clone() };
    host.snapshot.at.0 += 1;
    host.missing = Some(hostile.to_owned());
    session.state.source = hostile.to_owned();
    session.state.push(frame);
    for keys in ["1", "u", "/\u{9b}"] {
        session.chars(keys);
        let text = session.draw().concat();
        assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
    }
    session.press(&[KeyCode::Esc, KeyCode::Char('u'), KeyCode::Enter]);
    assert!(!session.draw().concat().contains('\x1b'));
}

/// Text of a view: verdict, processes, leaks with their evidence.
fn view_text(host: &HostFrame) -> String {
    use formats::report::live::text::TextStyle;
    use formats::report::tables::processes::{ProcessCells, ProcessColumn, cell};
    host.with_view(|view| {
        let mut text = formats::report::view::verdict_line(view, &host.context.clock).0 + "\n";
        for row in &view.processes {
            let of = ProcessCells { view, host: "", history: &[], baseline: None, resident: None };
            let columns = ProcessColumn::ALL.iter().filter(|one| **one != ProcessColumn::Age);
            let cells: Vec<_> = columns.map(|column| cell(*column, row, &of)).collect();
            text += &(cells.join("|") + "\n");
        }
        let mut leaks = Vec::new();
        for number in 1..=view.leaks.len() {
            let style = TextStyle { stack_depth: 0, ..TextStyle::default() };
            formats::report::view::write_leak(&mut leaks, view, number, style).unwrap();
        }
        text + &String::from_utf8(leaks).unwrap()
    })
}

#[test]
fn answers_of_an_agent_give_the_same_view() {
    let mut session = at_the_end(80, 24);
    session.press(&[KeyCode::Enter]);
    session.advance(1);
    let mut host = session.state.history.newest().unwrap().1.hosts[0].clone();
    let (at, pid, kind) = (host.snapshot.at, Some(Pid(7)), engine::model::MarkKind::End);
    host.snapshot.marks = vec![engine::model::Mark { at, pid, kind, label: "warmup".into() }];
    let report = formats::report::live::json::ReportJson::new(&host.snapshot, &host.context);
    let mut answer = serde_json::to_value(report).unwrap();
    answer["api"] = "v1".into();
    let read =
        formats::import::agent::snapshot(answer.to_string().as_bytes(), |clock| clock).unwrap();
    let mut context = read.context;
    context.clock = context.clock.in_utc();
    let again = HostFrame { snapshot: read.snapshot, context, ..host.clone() };
    let marks = |host: &HostFrame| {
        let (snapshot, clock) = (&host.snapshot, &host.context.clock);
        let mark = |mark| formats::report::tables::incidents::of_mark(mark, snapshot, clock);
        snapshot.marks.iter().map(mark).collect::<Vec<_>>()
    };
    assert_eq!(marks(&again), marks(&host));
    let text = view_text(&host);
    assert!(text.contains("leak, ") && text.contains("evidence"), "{text}");
    assert_eq!(view_text(&again), text);
    let torch = |host: &HostFrame| {
        let all = host.snapshot.processes.iter().flat_map(|process| &process.allocators);
        all.flat_map(|view| view.pools.clone())
            .map(|it| (it.allocated, it.reserved))
            .collect::<Vec<_>>()
    };
    assert_eq!(torch(&again), torch(&host));
    // Another program's answer is refused.
    assert!(formats::import::agent::snapshot(b"{\"status\": \"success\"}", |clock| clock).is_err());
    // And so is another version of the API.
    answer["api"] = "v2".into();
    assert!(
        formats::import::agent::snapshot(answer.to_string().as_bytes(), |clock| clock).is_err()
    );
    answer.as_object_mut().unwrap().remove("api");
    assert!(
        formats::import::agent::snapshot(answer.to_string().as_bytes(), |clock| clock).is_err()
    );
}
