//! Program and user of a process, read from `/proc` when it is announced. Arguments other than the
//! script or module are not kept: they may be confidential.

use std::fs::File;
use std::io::Read;

use engine::model::event::EventKind;
use engine::model::ids::Pid;
use engine::model::program::{ProcessIdentity, program_of_arguments};

use super::job::group_of;
use crate::users::UserNames;

/// Maximum bytes of a command line that are read.
const MAX_COMMAND_LINE_BYTES: u64 = 4096;

/// Resolves processes to programs and users.
#[derive(Default)]
pub(crate) struct IdentityResolver {
    users: UserNames,
}

impl IdentityResolver {
    /// Returns the identity of a process that was announced, if anything of it is known.
    pub(crate) fn process_started(&mut self, pid: Pid, uid: u32) -> Option<EventKind> {
        let (program, user) = (program(pid), self.users.name(uid));
        let identity = ProcessIdentity { program, user, group: group_of(pid) };
        let is_known = identity != ProcessIdentity::default();
        is_known.then(|| EventKind::Identity(Box::new(identity)))
    }
}

/// Returns the program that a process runs; `None` if it exited.
fn program(pid: Pid) -> Option<Box<str>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(MAX_COMMAND_LINE_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let arguments: Vec<&str> = text.trim_end_matches('\0').split('\0').collect();
    program_of_arguments(&arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_a_program_and_a_user() {
        let pid = Pid(std::process::id());
        let kind = IdentityResolver::default().process_started(pid, 0).unwrap();
        let EventKind::Identity(identity) = kind else { panic!("{kind:?}") };
        assert!(identity.program.unwrap().starts_with("capture-"));
        assert_eq!(identity.user.as_deref(), Some("root"));
    }
}
