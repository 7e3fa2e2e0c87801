//! Fault injection for tests: a named thread panics or hangs when a file appears.
//!
//! `VRAMSCOPE_FAULT=KIND:THREAD:FILE`, where `KIND` is `panic` or `hang`. It only affects the
//! process whose environment contains it, and a warning is printed at start. Without the variable a
//! fault point is one atomic load.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

const VARIABLE: &str = "VRAMSCOPE_FAULT";

static FAULT: OnceLock<Option<Fault>> = OnceLock::new();

#[derive(Clone, PartialEq, Eq, Debug)]
struct Fault {
    kind: Kind,
    thread: String,
    file: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Panic,
    Hang,
}

fn parse(text: &str) -> Option<Fault> {
    let mut parts = text.splitn(3, ':');
    let kind = match parts.next()? {
        "panic" => Kind::Panic,
        "hang" => Kind::Hang,
        _ => return None,
    };
    let (thread, file) = (parts.next()?.to_owned(), parts.next()?.into());
    Some(Fault { kind, thread, file })
}

fn requested() -> Option<&'static Fault> {
    let read = || std::env::var(VARIABLE).ok().as_deref().and_then(parse);
    FAULT.get_or_init(read).as_ref()
}

/// Returns the warning to print if a fault is requested.
#[must_use]
pub fn warning() -> Option<String> {
    let fault = requested()?;
    Some(format!(
        "{VARIABLE} is set: the thread `{}` will fail as soon as {} exists; unset it outside of tests",
        fault.thread,
        fault.file.display()
    ))
}

/// Fails in the current thread if a test requested it.
pub fn point() {
    let Some(fault) = requested() else { return };
    if thread::current().name() == Some(fault.thread.as_str()) && fault.file.exists() {
        fail(fault.kind);
    }
}

#[expect(clippy::panic, reason = "the test requested the panic")]
fn fail(kind: Kind) {
    match kind {
        Kind::Panic => panic!("injected fault"),
        Kind::Hang => loop {
            thread::sleep(Duration::from_hours(1));
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_parsed_only_when_complete() {
        let fault = parse("panic:capture:/tmp/a:b").unwrap();
        assert_eq!((fault.kind, &*fault.thread), (Kind::Panic, "capture"));
        assert_eq!(fault.file, PathBuf::from("/tmp/a:b"));
        assert_eq!(parse("hang:http:/x").unwrap().kind, Kind::Hang);
        for text in ["", "panic", "panic:capture", "kill:capture:/x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn no_fault_without_the_variable() {
        point();
        assert_eq!(warning(), None);
    }
}
