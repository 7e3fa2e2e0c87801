//! Removes what identifies a host or a user from text that is attached to bug reports.

use std::fs;
use std::path::Path;

/// Directories whose paths are the same on every host. Of other paths only the file name is kept.
const SYSTEM_DIRS: &[&str] =
    &["bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr"];

/// Shorter names would also match parts of other words.
const MIN_NAME_BYTES: usize = 3;

/// Longer runs of hexadecimal digits and dashes are ids of machines, containers or GPUs.
const MIN_ID_DIGITS: usize = 32;

/// Names that identify this host and its users.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    /// Names and what replaces them, longest first.
    names: Vec<(String, &'static str)>,
}

impl Redactor {
    /// Reads the names of this host and of its users.
    pub(super) fn read() -> Self {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let variables = ["USER", "LOGNAME", "SUDO_USER"];
        let users = variables.into_iter().filter_map(|name| std::env::var(name).ok());
        Self::new(&formats::hostname::name(), &passwd, users)
    }

    fn new(host: &str, passwd: &str, users: impl Iterator<Item = String>) -> Self {
        let mut names = vec![(host.to_owned(), "HOST")];
        names.extend(host.split_once('.').map(|(short, _)| (short.to_owned(), "HOST")));
        names.extend(users.map(|name| (name, "USER")));
        names.extend(passwd.lines().filter_map(person).map(|name| (name, "USER")));
        names.retain(|(name, _)| name.len() >= MIN_NAME_BYTES && name != "root");
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names.dedup();
        Self { names }
    }

    /// Returns the text without names of users and hosts, ids, and paths outside of system
    /// directories.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(word) = rest.chars().next() {
            let is_part = is_path_part(word);
            let end = rest.find(|c| is_path_part(c) != is_part).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            if is_part {
                redacted += &self.word(word);
            } else {
                redacted += word;
            }
            rest = after;
        }
        redacted
    }

    /// Redacts a word, which may be a path.
    fn word(&self, word: &str) -> String {
        let system = |path: &str| {
            let first = path.split('/').nth(1).unwrap_or_default();
            SYSTEM_DIRS.contains(&first) || path == "/"
        };
        let word = match word.find('/') {
            Some(0) if !system(word) => format!("…/{}", word.rsplit('/').next().unwrap_or("")),
            _ => word.to_owned(),
        };
        let word = self.names.iter().fold(word, |word, (name, label)| replace(&word, name, label));
        without_ids(&word)
    }
}

/// Returns the user of a line of `/etc/passwd`, unless it is one of the system.
fn person(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, _, _, home, _] = fields[..] else { return None };
    let is_person = uid.parse::<u32>().is_ok_and(|uid| (1000..65_534).contains(&uid))
        || Path::new(home).starts_with("/home");
    is_person.then(|| name.to_owned())
}

const fn is_path_part(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '/' | '.' | '-' | '_' | '+' | '@' | '~')
        || !c.is_ascii()
}

/// Replaces a name where it is a whole word; `ann` stays in `channel`.
fn replace(text: &str, name: &str, label: &str) -> String {
    let part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (mut replaced, mut rest, mut before) = (String::new(), text, None);
    while let Some(at) = rest.find(name) {
        let (head, tail) = rest.split_at(at);
        let after = &tail[name.len()..];
        let is_word = !part(head.chars().next_back().or(before)) && !part(after.chars().next());
        replaced += head;
        replaced += if is_word { label } else { name };
        before = name.chars().next_back();
        rest = after;
    }
    replaced + rest
}

/// Replaces long runs of hexadecimal digits and dashes.
fn without_ids(word: &str) -> String {
    let is_id = |part: &str| part.chars().filter(char::is_ascii_hexdigit).count() >= MIN_ID_DIGITS;
    let (mut replaced, mut run) = (String::new(), String::new());
    for c in word.chars().map(Some).chain([None]) {
        if let Some(c) = c.filter(|c| c.is_ascii_hexdigit() || *c == '-') {
            run.push(c);
            continue;
        }
        let id = run.trim_start_matches('-');
        let shown = if is_id(id) { "ID" } else { id };
        replaced += &run[..run.len() - id.len()];
        replaced += shown;
        run.clear();
        replaced.extend(c);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
                          daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
                          ann:x:1000:1000:Ann Example,,,:/home/ann:/bin/zsh\n\
                          svc-train:x:998:998::/home/svc-train:/bin/sh\n";

    fn redacted(text: &str) -> String {
        let users = ["root", "bob"].map(str::to_owned).into_iter();
        Redactor::new("gpu7.cluster.example", PASSWD, users).redact(text)
    }

    #[test]
    fn hosts_users_and_ids_are_removed() {
        for (text, expected) in [
            ("Linux gpu7 and gpu7.cluster.example", "Linux HOST and HOST"),
            ("user ann, svc-train, bob: no", "user USER, USER, USER: no"),
            ("channel of Hannah", "channel of Hannah"),
            ("/usr/lib/libcuda.so.1: fine", "/usr/lib/libcuda.so.1: fine"),
            ("/srv/ann/venv/lib/libcuda.so.1: x", "…/libcuda.so.1: x"),
            ("`/data/secret-project/libcuda.so.580.1`", "`…/libcuda.so.580.1`"),
            ("/proc/12/root/usr/lib/ann/x", "/proc/12/root/usr/lib/USER/x"),
            ("GPU UUID: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "GPU UUID: GPU-ID"),
            ("0::/docker/5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e", "0::…/ID"),
            ("daemon of root: 6.18.44-generic", "daemon of root: 6.18.44-generic"),
        ] {
            assert_eq!(redacted(text), expected);
        }
    }

    #[test]
    fn short_and_empty_names_are_kept() {
        let redactor = Redactor::new("", "", ["ed".to_owned()].into_iter());
        assert_eq!(redactor.redact("limited by ed"), "limited by ed");
    }
}
