//! Program and user of a process, read from `/proc` when it is announced. Arguments other than the
//! script or module are not kept: they may be confidential.

use std::fs::File;
use std::io::Read;

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::program::{ProcessIdentity, program_of_arguments};
use engine::model::units::Timestamp;

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
    pub(crate) fn process_started(&mut self, pid: Pid, uid: u32, at: Timestamp) -> Option<Event> {
        let (program, user) = (program(pid), self.users.name(uid));
        let identity = ProcessIdentity { program, user, group: group_of(pid) };
        let is_known = identity != ProcessIdentity::default();
        let kind = EventKind::Identity(Box::new(identity));
        is_known.then_some(Event { pid, tid: Tid(pid.0), entry_time: at, time: at, kind })
    }

    /// Inserts the identity of each process that is announced in `events`, right after it.
    pub(crate) fn with_identities(&mut self, events: Vec<Event>, now: Timestamp) -> Vec<Event> {
        let mut all = Vec::with_capacity(events.len());
        for event in events {
            let started = match &event.kind {
                EventKind::Process(info) => Some((event.pid, info.uid)),
                _ => None,
            };
            all.push(event);
            all.extend(started.and_then(|(pid, uid)| self.process_started(pid, uid, now)));
        }
        all
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
        let event = IdentityResolver::default().process_started(pid, 0, Timestamp(5)).unwrap();
        let EventKind::Identity(identity) = event.kind else { panic!("{event:?}") };
        assert!(identity.program.unwrap().starts_with("capture-"));
        assert_eq!(identity.user.as_deref(), Some("root"));
    }
}
