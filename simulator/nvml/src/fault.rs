//! Failing and slow calls on request of a test.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();

/// What the file requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Code(c_int),
    Delay(Duration),
}

fn parse(text: &str) -> Option<Fault> {
    let (kind, number) = text.trim().split_once(' ')?;
    match kind {
        "code" => number.parse().ok().map(Fault::Code),
        "delay" => number.parse().ok().map(Duration::from_millis).map(Fault::Delay),
        _ => None,
    }
}

/// Waits, or returns the result of a call that fails, if the file requests it.
pub(crate) fn result() -> Option<c_int> {
    let file = FILE.get_or_init(|| std::env::var_os("SIM_NVML_FAULT").map(PathBuf::from));
    let text = std::fs::read_to_string(file.as_ref()?).ok()?;
    match parse(&text)? {
        Fault::Code(code) => Some(code),
        Fault::Delay(time) => {
            std::thread::sleep(time);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_parsed() {
        assert_eq!(parse("code 999\n"), Some(Fault::Code(999)));
        assert_eq!(parse("delay 20"), Some(Fault::Delay(Duration::from_millis(20))));
        for text in ["", "code", "code x", "delay -1", "other 1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
