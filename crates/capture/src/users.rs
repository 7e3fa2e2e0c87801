//! Users of this host, from `/etc/passwd` and `/etc/group`. Directory services are not asked: they
//! may block, and a static binary cannot load their modules.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// A user of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Returns the user with a name or a numeric id.
#[must_use]
pub fn find(name_or_id: &str) -> Option<User> {
    find_under(Path::new("/etc"), name_or_id)
}

fn find_under(etc: &Path, name_or_id: &str) -> Option<User> {
    let passwd = fs::read_to_string(etc.join("passwd")).ok()?;
    let id: Option<u32> = name_or_id.parse().ok();
    let mut all = passwd.lines().filter_map(entry);
    let mut user = all.find(|user| user.name == name_or_id || Some(user.uid) == id)?;
    let group = fs::read_to_string(etc.join("group")).unwrap_or_default();
    user.groups = group.lines().filter_map(|line| member_of(line, &user.name)).collect();
    Some(user)
}

/// Parses `name:password:uid:gid:comment:home:shell`.
fn entry(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = fields[..] else { return None };
    Some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: home.to_owned(),
        shell: shell.to_owned(),
        groups: Vec::new(),
    })
}

/// Returns the id of a group (`name:password:gid:members`) if the user is a member.
fn member_of(line: &str, user: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split(':').collect();
    let [_, _, gid, members] = fields[..] else { return None };
    members.split(',').any(|member| member == user).then(|| gid.parse().ok())?
}

/// Names of users by id, read again if the file changes.
#[derive(Debug, Default)]
pub(crate) struct UserNames {
    names: HashMap<u32, Box<str>>,
    read_at: Option<std::time::SystemTime>,
}

impl UserNames {
    /// Returns the name of a user, if this host has one.
    pub(crate) fn name(&mut self, uid: u32) -> Option<Box<str>> {
        let changed = fs::metadata("/etc/passwd").and_then(|file| file.modified()).ok();
        if changed != self.read_at {
            self.read_at = changed;
            let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
            let users = passwd.lines().filter_map(entry);
            self.names.clear();
            for user in users {
                self.names.entry(user.uid).or_insert_with(|| user.name.into());
            }
        }
        self.names.get(&uid).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_id() {
        let dir = tempfile::tempdir().unwrap();
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1001:,,:/home/ann:/bin/zsh\n";
        fs::write(dir.path().join("passwd"), passwd).unwrap();
        fs::write(dir.path().join("group"), "video:x:44:bob,ann\naudio:x:29:bob\nx\n").unwrap();
        let ann = find_under(dir.path(), "ann").unwrap();
        assert_eq!(
            (ann.uid, ann.gid, &*ann.home, &ann.groups[..]),
            (1000, 1001, "/home/ann", &[44][..])
        );
        assert_eq!(find_under(dir.path(), "1000"), Some(ann));
        assert_eq!(find_under(dir.path(), "eve"), None);
        assert_eq!(UserNames::default().name(0).as_deref(), Some("root"));
    }
}
