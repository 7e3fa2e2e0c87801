//! Marks from outside: each trace has a datagram socket in the abstract namespace, named after its
//! pid. Any process of the same network namespace sends marks to all traces, without a file or a
//! permission; the kernel says which process and user sent one.
//!
//! A datagram is `mark SUBJECT SCOPE TIME LABEL`. The scope is `self`, `all` or a pid, the time is that
//! of the monotonic clock. If the sender has a name, the answer is `ok` or a reason.
//!
//! A search for Python references publishes its result in the same way.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;
use engine::model::{Mark, MarkKind};

use crate::clock;

/// Start of the name of a socket; the pid of the trace follows.
const PREFIX: &str = "vramscope-trace-";

/// Limit of a datagram.
const MAX_BYTES: usize = Mark::MAX_LABEL_BYTES + 128;

/// Limit of marks that are read at once.
const MAX_READ: usize = 256;

/// Marks that a user may set at once, and per second.
const BURST: f64 = 200.0;
const PER_SECOND: f64 = 20.0;

/// Limit of users whose rate is counted separately.
const MAX_USERS: usize = 64;

/// What a label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkSubject {
    /// It names a time.
    Time(MarkKind),
    /// It names the Python references that keep the memory at this address alive.
    KeptBy(u64),
}

/// Start of the word for references; the address follows.
const REFERENCES_PREFIX: &str = "kept-by-";

impl MarkSubject {
    fn parse(word: &str) -> Option<Self> {
        let address =
            word.strip_prefix(REFERENCES_PREFIX).map(|text| u64::from_str_radix(text, 16));
        match address {
            Some(address) => address.ok().map(Self::KeptBy),
            None => MarkKind::from_name(word).map(Self::Time),
        }
    }
}

impl fmt::Display for MarkSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(kind) => f.write_str(kind.name()),
            Self::KeptBy(address) => write!(f, "{REFERENCES_PREFIX}{address:x}"),
        }
    }
}

/// Which processes a mark is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkScope {
    /// The process that sends it.
    Sender,
    /// All processes of the host.
    All,
    /// One process.
    Process(Pid),
}

impl fmt::Display for MarkScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sender => f.write_str("self"),
            Self::All => f.write_str("all"),
            Self::Process(pid) => write!(f, "{pid}"),
        }
    }
}

/// A mark to set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkRequest {
    /// What the label says.
    pub subject: MarkSubject,
    /// Which processes it is about.
    pub scope: MarkScope,
    /// Label.
    pub label: String,
}

impl MarkRequest {
    fn encode(&self, at: Timestamp) -> String {
        format!("mark {} {} {} {}", self.subject, self.scope, at.0, self.label)
    }

    /// Parses a datagram: the mark and its time.
    fn parse(text: &str) -> Option<(Self, Timestamp)> {
        let mut words = text.splitn(5, ' ');
        let known = words.next() == Some("mark");
        let subject = MarkSubject::parse(words.next().filter(|_| known)?)?;
        let scope = match words.next()? {
            "self" => MarkScope::Sender,
            "all" => MarkScope::All,
            pid => MarkScope::Process(Pid(pid.parse().ok()?)),
        };
        let at = Timestamp(words.next()?.parse().ok()?);
        let label = words.next()?.trim().to_owned();
        Some((Self { subject, scope, label }, at))
    }
}

/// Who sent a datagram, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sender {
    pid: Pid,
    uid: u32,
}

/// A datagram, and where the answer goes.
struct Datagram {
    bytes: Vec<u8>,
    sender: Option<Sender>,
    address: libc::sockaddr_un,
    address_bytes: libc::socklen_t,
}

/// The socket of a trace.
pub(crate) struct MarkSocket {
    socket: UnixDatagram,
    /// Marks are newer than this: they were not there at the last read.
    read_at: Timestamp,
    rate: Rate,
}

impl MarkSocket {
    /// Opens the socket of this process; fails if it already has one.
    pub(crate) fn open() -> io::Result<Self> {
        let name = format!("{PREFIX}{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_nonblocking(true)?;
        let on: libc::c_int = 1;
        // SAFETY: reads an integer of the given size.
        let status = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PASSCRED,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, read_at: clock::monotonic(), rate: Rate::default() })
    }

    /// Returns the new marks. `is_traced`: whether a process belongs to the trace.
    pub(crate) fn drain(&mut self, is_traced: impl Fn(Pid) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        let now = clock::monotonic();
        let since = std::mem::replace(&mut self.read_at, now);
        for _ in 0..MAX_READ {
            let Some(datagram) = self.receive() else { break };
            let answer = match self.accept(&datagram, &is_traced) {
                Ok((pid, request, at)) => {
                    // The sender cannot place a mark before an earlier read, or in the future.
                    let time = at.clamp(since, now);
                    let kind = event_kind(request.subject, &request.label);
                    events.push(Event { pid, tid: Tid(pid.0), entry_time: time, time, kind });
                    "ok"
                }
                Err(reason) => reason,
            };
            self.answer(&datagram, answer);
        }
        events
    }

    /// Checks a datagram. Returns the process that it is about, or 0 for all.
    fn accept(
        &mut self,
        datagram: &Datagram,
        is_traced: &impl Fn(Pid) -> bool,
    ) -> Result<(Pid, MarkRequest, Timestamp), &'static str> {
        let sender = datagram.sender.ok_or("the sender is unknown")?;
        let text = std::str::from_utf8(&datagram.bytes).map_err(|_| "the label is not UTF-8")?;
        let (request, at) = MarkRequest::parse(text)
            .ok_or("the mark is not understood; use the same version of vramscope")?;
        if request.label.is_empty() || request.label.len() > Mark::MAX_LABEL_BYTES {
            return Err("a label has 1 to 256 bytes");
        }
        let pid = match request.scope {
            MarkScope::Sender => sender.pid,
            MarkScope::All => Pid(0),
            MarkScope::Process(pid) => pid,
        };
        let is_admin = sender.uid == 0 || sender.uid == user();
        let is_about_process = request.scope != MarkScope::All;
        if !is_about_process && matches!(request.subject, MarkSubject::KeptBy(_)) {
            return Err("references are those of one process");
        }
        if !is_about_process && !is_admin {
            return Err("only root and the user of the trace may mark all processes; use -p PID");
        }
        let user_of = if pid == sender.pid { Some(sender.uid) } else { owner(pid) };
        if is_about_process {
            match user_of {
                None => return Err("there is no such process"),
                Some(user) if user != sender.uid && !is_admin => {
                    return Err("the process belongs to another user");
                }
                Some(_) if !is_traced(pid) => return Err(NOT_TRACED),
                Some(_) => {}
            }
        }
        if !self.rate.allows(sender.uid, Instant::now()) {
            return Err("too many marks: at most 20 per second");
        }
        Ok((pid, request, at))
    }

    /// Receives a datagram, if there is one.
    fn receive(&self) -> Option<Datagram> {
        let mut bytes = vec![0_u8; MAX_BYTES];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // Aligned for headers, and larger than one with credentials.
        let mut control = [0_u64; 16];
        // SAFETY: all-zero bytes are valid for these C structures.
        let (mut address, mut message) =
            unsafe { (zeroed::<libc::sockaddr_un>(), zeroed::<libc::msghdr>()) };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message points to buffers of this frame, with their sizes.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        bytes.truncate(usize::try_from(length).ok()?);
        Some(Datagram {
            bytes,
            sender: credentials(&message),
            address,
            address_bytes: message.msg_namelen,
        })
    }

    /// Answers a sender that has a name. One that does not read its answers gets none.
    fn answer(&self, to: &Datagram, text: &str) {
        if to.address_bytes as usize <= size_of::<libc::sa_family_t>() {
            return;
        }
        // SAFETY: reads the text and the address, which the kernel wrote with this length.
        unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                text.as_ptr().cast(),
                text.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const to.address).cast(),
                to.address_bytes,
            );
        }
    }
}

/// Returns the event of an accepted datagram. References are shown as they are, so only visible
/// characters remain.
fn event_kind(subject: MarkSubject, label: &str) -> EventKind {
    let visible = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    match subject {
        MarkSubject::Time(kind) => EventKind::Mark { kind, label: label.into() },
        MarkSubject::KeptBy(address) => {
            let text = label.chars().map(|c| if visible(c) { c } else { '?' });
            EventKind::KeptBy(address, text.collect::<String>().into())
        }
    }
}

/// Answer of a trace that does not trace the process.
const NOT_TRACED: &str = "the process is not traced";

/// Returns the credentials that the kernel added to a message.
fn credentials(message: &libc::msghdr) -> Option<Sender> {
    // SAFETY: the kernel wrote the control buffer, which is still alive; headers and data are read
    // within the length that it set.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_credentials = (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_CREDENTIALS;
            if is_credentials {
                let found = libc::CMSG_DATA(header).cast::<libc::ucred>().read_unaligned();
                let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0)?;
                return Some(Sender { pid: Pid(pid), uid: found.uid });
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// Returns the effective user of this process.
fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the owner of a process.
fn owner(pid: Pid) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// Marks that each user may still set.
#[derive(Default)]
struct Rate {
    by_user: HashMap<u32, (f64, Instant)>,
}

impl Rate {
    /// Whether a user may set a mark now; counts it.
    fn allows(&mut self, uid: u32, now: Instant) -> bool {
        let is_new = !self.by_user.contains_key(&uid);
        // With many users, the others share one budget.
        let uid = if is_new && self.by_user.len() >= MAX_USERS { u32::MAX } else { uid };
        let (left, at) = self.by_user.entry(uid).or_insert((BURST, now));
        let grown = now.saturating_duration_since(*at).as_secs_f64() * PER_SECOND;
        (*left, *at) = ((*left + grown).min(BURST), now);
        let is_allowed = *left >= 1.0;
        *left -= f64::from(u8::from(is_allowed));
        is_allowed
    }
}

/// What the traces answered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MarkAnswers {
    /// Number of traces that accepted the mark.
    pub accepted: usize,
    /// Reasons of those that did not, without those that do not trace the process.
    pub refused: Vec<String>,
    /// Number of traces that do not trace the process.
    pub not_traced: usize,
}

/// Sends a mark to all traces, or to those of one process, and waits for their answers.
pub fn send_mark(
    request: &MarkRequest,
    tracer: Option<u32>,
    timeout: Duration,
) -> io::Result<MarkAnswers> {
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!(
        "vramscope-mark-{}",
        std::process::id()
    ))?)?;
    let text = request.encode(clock::monotonic());
    let deadline = Instant::now() + timeout;
    socket.set_write_timeout(Some(timeout))?;
    let mut answers = MarkAnswers::default();
    let mut open = 0_usize;
    let listed = std::fs::read_to_string("/proc/net/unix")?;
    for name in trace_sockets(&listed, tracer) {
        match socket.send_to_addr(text.as_bytes(), &SocketAddr::from_abstract_name(name)?) {
            Ok(_) => open += 1,
            // It has just ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => answers.refused.push(error.to_string()),
        }
    }
    let mut answer = [0; 256];
    while open > 0 {
        let rest = deadline.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(rest.max(Duration::from_millis(1))))?;
        let Ok(length) = socket.recv(&mut answer) else { break };
        open -= 1;
        match &*String::from_utf8_lossy(answer.get(..length).unwrap_or_default()) {
            "ok" => answers.accepted += 1,
            NOT_TRACED => answers.not_traced += 1,
            reason => answers.refused.push(reason.to_owned()),
        }
    }
    answers.refused.extend((0..open).map(|_| "the trace does not answer".to_owned()));
    Ok(answers)
}

/// Sends requests to all traces, without an answer. A trace that does not read them in time misses them.
pub fn publish(requests: &[MarkRequest], timeout: Duration) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(timeout))?;
    let listed = std::fs::read_to_string("/proc/net/unix")?;
    for name in trace_sockets(&listed, None) {
        let address = SocketAddr::from_abstract_name(name)?;
        for request in requests {
            let text = request.encode(clock::monotonic());
            // It has just ended, or is stopped.
            if socket.send_to_addr(text.as_bytes(), &address).is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// Returns the names of the sockets of traces in a listing of the kernel.
fn trace_sockets(listed: &str, tracer: Option<u32>) -> impl Iterator<Item = &str> {
    let names = listed.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@'));
    names.filter(move |name| {
        let pid = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some() && (tracer.is_none() || pid == tracer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_parsed_and_nonsense_is_rejected() {
        let request = MarkRequest {
            subject: MarkSubject::Time(MarkKind::Begin),
            scope: MarkScope::Process(Pid(7)),
            label: "epoch 3: \x1b[2J".into(),
        };
        let parsed = MarkRequest::parse(&request.encode(Timestamp(9)));
        assert_eq!(parsed, Some((request, Timestamp(9))));
        let request = MarkRequest {
            subject: MarkSubject::KeptBy(0x7f00_0000_1000),
            scope: MarkScope::Process(Pid(7)),
            label: "__main__.history (dict, 2 entries)".into(),
        };
        let parsed = MarkRequest::parse(&request.encode(Timestamp(9)));
        assert_eq!(parsed, Some((request, Timestamp(9))));
        for text in [
            "",
            "mark",
            "mark kept-by-x self 1 a",
            "mark point",
            "mark point self 1",
            "mark x self 1 a",
            "a b c d e",
        ] {
            assert_eq!(MarkRequest::parse(text), None, "{text}");
        }
        for text in ["mark point -1 1 a", "mark point self -1 a", "mark point 99999999999 1 a"] {
            assert_eq!(MarkRequest::parse(text), None, "{text}");
        }
    }

    #[test]
    fn marks_of_one_user_are_limited_and_others_are_not() {
        let (mut rate, now) = (Rate::default(), Instant::now());
        let accepted = (0..1000).filter(|_| rate.allows(1000, now)).count();
        assert_eq!(accepted, 200);
        assert!(rate.allows(1001, now));
        assert!(rate.allows(1000, now + Duration::from_secs(1)));
        assert!((0..1_000_000).all(|uid| rate.allows(uid, now) || uid >= MAX_USERS as u32));
        assert!(rate.by_user.len() <= MAX_USERS + 1);
    }

    #[test]
    fn sockets_of_traces_are_found_in_the_kernels_list() {
        let listed = "Num RefCount Protocol Flags Type St Inode Path\n\
                      0: 00000002 00000000 00000000 0002 01 1 @vramscope-trace-12\n\
                      0: 00000002 00000000 00000000 0002 01 2 @vramscope-trace-x\n\
                      0: 00000002 00000000 00000000 0002 01 3 /run/vramscope-trace-13\n\
                      0: 00000002 00000000 00000000 0002 01 4 @vramscope-trace-14\n";
        let names = |tracer| trace_sockets(listed, tracer).collect::<Vec<_>>();
        assert_eq!(names(None), ["vramscope-trace-12", "vramscope-trace-14"]);
        assert_eq!(names(Some(14)), ["vramscope-trace-14"]);
    }

    #[test]
    fn accepted_marks_have_times_between_two_reads() {
        let Ok(mut socket) = MarkSocket::open() else { panic!("the name is taken") };
        let client = UnixDatagram::unbound().unwrap();
        let name = format!("{PREFIX}{}", std::process::id());
        let send = |text: &str| {
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            client.send_to_addr(text.as_bytes(), &address).unwrap();
        };
        let before = socket.read_at;
        send("mark point self 0 early");
        send(&format!("mark end all {} late", u64::MAX));
        send("mark point 1 1 of another trace");
        send("mark point self 1 ");
        send("mark kept-by-7f00 all 1 everything");
        send("mark kept-by-7f00 self 1 __main__.h\u{1b}[2J\u{202e}\u{e4}");
        send(&format!("mark point self 1 {}", "x".repeat(300)));
        let own = Pid(std::process::id());
        let events = socket.drain(|pid| pid == own);
        let label = |event: &Event| match &event.kind {
            EventKind::KeptBy(0x7f00, text) => text.to_string(),
            _ => Mark::of(event).unwrap().label.to_string(),
        };
        let found: Vec<_> =
            events.iter().map(|event| (event.pid, event.time, label(event))).collect();
        let expected = [
            (own, before, "early".to_owned()),
            (Pid(0), socket.read_at, "late".to_owned()),
            (own, before, "__main__.h?[2J?\u{e4}".to_owned()),
        ];
        assert_eq!(found, expected);
        assert!(socket.drain(|_| true).is_empty());
    }
}
