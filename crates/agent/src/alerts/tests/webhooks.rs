use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use engine::metrics::MetricSet;
use serde_json::Value;

use super::receiver::Server;
use super::{at, count, leak, settings, until, worker};

/// Sends one message to a webhook with this configuration. Returns the counts.
fn send(receiver: &str) -> Vec<((&'static str, &'static str), u64)> {
    let shared = settings(&format!(
        "[alerts]\nleak_suspect = \"0s\"\n[[alerts.receiver]]\ntype = \"webhook\"\n{receiver}"
    ));
    let mut worker = worker(&shared);
    worker.evaluate(&leak("41"), at(0));
    until("its end", || !shared.alerts.notified.counts().is_empty());
    worker.finish();
    shared.alerts.notified.counts()
}

const SENT: (&str, &str) = ("webhook", "sent");
const FAILED: (&str, &str) = ("webhook", "failed");

#[test]
fn busy_receiver_is_retried() {
    let server = Server::responding(&["503 Busy", "429 Slow down", "200 OK"]);
    assert_eq!(send(&format!("url = \"{}\"", server.url("/hook"))), [(SENT, 1)]);
    assert_eq!(server.requests().len(), 3);
    assert_eq!(server.requests()[2].header("content-type"), Some("application/json"));
    assert!(server.requests()[0].head.starts_with("POST /hook HTTP/1.1\r\n"));
}

#[test]
fn permanent_failure_is_not_retried() {
    let server = Server::responding(&["400 Bad Request"]);
    assert_eq!(send(&format!("url = \"{}\"", server.url("/"))), [(FAILED, 1)]);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn retries_end_after_their_time() {
    let server = Server::responding(&["500 Broken"]);
    let begin = Instant::now();
    let url = server.url("/");
    assert_eq!(send(&format!("url = \"{url}\"\nmax_retry_time = \"100ms\"")), [(FAILED, 1)]);
    assert!(server.requests().len() > 1 && begin.elapsed() < Duration::from_mins(1));
}

#[test]
fn redirects_are_not_followed() {
    let other = Server::responding(&["200 OK"]);
    let location = format!("307 Elsewhere\r\nLocation: {}", other.url("/"));
    let server = Server::responding(Box::leak(Box::new([&*location.leak()])));
    assert_eq!(send(&format!("url = \"{}\"", server.url("/"))), [(FAILED, 1)]);
    assert_eq!((server.requests().len(), other.requests().len()), (1, 0));
}

#[test]
fn unresponsive_receiver_times_out() {
    let server = Server::responding(&[""]);
    let begin = Instant::now();
    let url = server.url("/");
    assert_eq!(
        send(&format!("url = \"{url}\"\nmax_retry_time = \"0s\"\ntimeout = \"300ms\"")),
        [(FAILED, 1)]
    );
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
}

#[test]
fn tokens_and_urls_come_from_files() {
    let server = Server::responding(&["200 OK"]);
    let dir = tempfile::tempdir().unwrap();
    let (token, url) = (dir.path().join("token"), dir.path().join("url"));
    std::fs::write(&token, "s3cret\n").unwrap();
    std::fs::write(&url, format!("{}\n", server.url("/services/T0/B0/XyZ"))).unwrap();
    for file in [&token, &url] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let files = format!("url_file = \"{}\"\ntoken_file = \"{}\"\n", url.display(), token.display());
    assert_eq!(send(&files), [(SENT, 1)]);
    assert_eq!(
        send(&format!("{files}token_header = \"X-Key\"\nheaders = {{ X-Team = \"ml\" }}")),
        [(SENT, 1)]
    );
    let requests = server.requests();
    assert_eq!(requests[0].header("authorization"), Some("Bearer s3cret"));
    assert!(requests[0].head.starts_with("POST /services/T0/B0/XyZ "));
    assert_eq!(requests[1].header("x-key"), Some("s3cret"));
    assert_eq!(requests[1].header("authorization"), None);
    assert_eq!(requests[1].header("x-team"), Some("ml"));
}

#[test]
fn webhook_gets_firing_and_resolved() {
    let server = Server::responding(&["200 OK"]);
    let shared = settings(&format!(
        "[alerts]\nleak_suspect = \"2s\"\nkeep_firing_for = \"2s\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nformat = \"slack\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nmin_severity = \"critical\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nrules = [\"nearly_full\"]\n",
        server.url("/json"),
        server.url("/slack"),
        server.url("/critical"),
        server.url("/full"),
    ));
    let mut worker = worker(&shared);
    for second in 0..5 {
        worker.evaluate(&leak("41"), at(second));
    }
    until("the first messages", || server.requests().len() == 2);
    for second in 5..20 {
        worker.evaluate(&MetricSet::default(), at(second));
    }
    until("the last messages", || server.requests().len() == 4);
    worker.finish();
    assert_eq!(count(&shared, "webhook", "sent"), 4);
    let bodies = |path: &str| -> Vec<Value> {
        let requests = server.requests().into_iter();
        let ours = requests.filter(|request| request.head.starts_with(&format!("POST {path} ")));
        ours.map(|request| serde_json::from_str(&request.body).unwrap()).collect()
    };
    let json = bodies("/json");
    assert_eq!((&json[0]["state"], &json[1]["state"]), (&"firing".into(), &"resolved".into()));
    assert_eq!(json[0]["labels"]["pid"], "41");
    assert_eq!(json[0]["host"], "node-1");
    assert_eq!(bodies("/slack")[1]["attachments"][0]["color"], "good");
    assert!(bodies("/critical").is_empty() && bodies("/full").is_empty());
}

#[test]
fn hanging_receiver_never_blocks_and_drops_are_counted() {
    let server = Server::responding(&[""]);
    let shared = settings(&format!(
        "[alerts]\nleak_suspect = \"0s\"\nkeep_firing_for = \"0s\"\n[[alerts.receiver]]\ntype = \"webhook\"\n\
         url = \"{}\"\nrate_limit = 1000\ntimeout = \"1s\"",
        server.url("/")
    ));
    let mut worker = worker(&shared);
    let begin = Instant::now();
    for second in 0..200 {
        let metrics = if second % 2 == 0 { leak("41") } else { MetricSet::default() };
        worker.evaluate(&metrics, at(second));
    }
    // One is being sent, 64 are queued.
    assert!((134..=136).contains(&count(&shared, "webhook", "dropped")));
    worker.finish();
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
}

/// An HTTPS server with a certificate of an untrusted CA.
const TLS: &str = "
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

/// Runs openssl in a directory.
fn openssl(dir: &Path, line: &str) {
    let status = Command::new("openssl")
        .args(line.split(' '))
        .current_dir(dir)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "openssl {line}");
}

#[test]
fn certificates_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        dir.path(),
        &format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"),
    );
    openssl(dir.path(), &format!("req {key} -subj /CN=test -keyout key.pem -out request.pem"));
    let extensions = "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
    std::fs::write(dir.path().join("extensions"), extensions).unwrap();
    let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions";
    openssl(dir.path(), &format!("x509 -req -in request.pem {sign} -out cert.pem"));
    let mut server = Command::new("python3")
        .args(["-c", TLS, "cert.pem", "key.pem"])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("url = \"https://127.0.0.1:{}/\"\nmax_retry_time = \"0s\"\n", port.trim());
    let root = dir.path().join("ca.pem");
    let trusted = send(&format!("{url}ca_file = \"{}\"", root.display()));
    let untrusted = send(&url);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!((&trusted[..], &untrusted[..]), (&[(SENT, 1)][..], &[(FAILED, 1)][..]));
}
