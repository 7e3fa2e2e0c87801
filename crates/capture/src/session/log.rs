//! What libbpf and the verifier have to say. It goes to nobody's terminal; the last lines are kept
//! for whoever asks why something failed.

use std::collections::VecDeque;
use std::sync::Mutex;

use libbpf_rs::PrintLevel;

/// Enough for the end of a verifier log.
const LINES: usize = 40;

static LAST: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Takes over libbpf's messages.
pub(crate) fn listen() {
    libbpf_rs::set_print(Some((PrintLevel::Info, keep)));
}

fn keep(_level: PrintLevel, text: String) {
    let Ok(mut last) = LAST.lock() else { return };
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if last.len() == LINES {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    }
}

/// The last messages, oldest first.
#[must_use]
pub fn last_messages() -> Vec<String> {
    LAST.lock().map(|last| last.iter().cloned().collect()).unwrap_or_default()
}
