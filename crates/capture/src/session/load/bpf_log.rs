//! Messages of libbpf and the verifier. They are not printed; the last lines are kept for error
//! messages.

use std::collections::VecDeque;
use std::sync::Mutex;

use libbpf_rs::PrintLevel;

/// Enough for the end of a verifier log.
const MAX_LOG_LINES: usize = 40;

static LAST: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Installs the callback for libbpf's messages.
pub(crate) fn install() {
    libbpf_rs::set_print(Some((PrintLevel::Info, keep)));
}

fn keep(_level: PrintLevel, text: String) {
    let Ok(mut last) = LAST.lock() else { return };
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if last.len() == MAX_LOG_LINES {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    }
}

/// Returns the last messages, oldest first.
#[must_use]
pub fn recent() -> Vec<String> {
    LAST.lock().map(|last| last.iter().cloned().collect()).unwrap_or_default()
}

/// Returns why the verifier rejected a program, as a suffix for an error message.
pub(crate) fn verifier_error() -> String {
    rejection(&recent()).map_or_else(String::new, |reason| format!(" (the kernel says: {reason})"))
}

/// Returns the last line of the last verifier log, without its statistics.
fn rejection(messages: &[String]) -> Option<&str> {
    let end = messages.iter().rposition(|line| line.starts_with("-- END PROG LOAD LOG"))?;
    let lines = messages.get(..end)?.iter().rev().map(|line| line.trim());
    let mut lines = lines.take_while(|line| !line.contains("-- BEGIN PROG LOAD LOG"));
    lines.find(|line| !line.starts_with("processed ") && !line.starts_with("verification time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn reason_is_last_line_of_last_log() {
        let log = lines(
            "libbpf: prog 'a': -- BEGIN PROG LOAD LOG --\nold\n-- END PROG LOAD LOG --\n\
             libbpf: prog 'call_multi_return': BPF program load failed: -EACCES\n\
             libbpf: prog 'call_multi_return': -- BEGIN PROG LOAD LOG --\n\
             combined stack size of 6 calls is 528. Too large\n\
             processed 369129 insns (limit 1000000) max_states_per_insn 52\n\
             -- END PROG LOAD LOG --\nlibbpf: failed to load object 'vramscope'",
        );
        assert_eq!(rejection(&log), Some("combined stack size of 6 calls is 528. Too large"));
    }

    #[test]
    fn missing_or_empty_log_has_no_reason() {
        assert_eq!(rejection(&lines("libbpf: Error in bpf_create_map_xattr(x): -EPERM")), None);
        let empty = "libbpf: prog 'a': -- BEGIN PROG LOAD LOG --\n-- END PROG LOAD LOG --";
        assert_eq!(rejection(&lines(empty)), None);
    }
}
