use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use engine::metrics::Figures;
use serde_json::Value;

use super::super::Board;
use super::super::outlet::Message;
use super::super::webhook::Sender;
use super::receiver::Server;
use super::{at, clock, count, leak, settings, until, watch};

/// Sends one message as the settings of an action say; what the board counted.
fn send(action: &str) -> Vec<((&'static str, &'static str), u64)> {
    let shared = settings(&format!("[[alerts.receiver]]\ntype = \"webhook\"\n{action}"));
    let sender = Sender::new(&shared.config.alerts.actions()[0]).unwrap().hurried();
    let (queue, inbox) = sync_channel(1);
    queue.send(Message { about: "test".into(), body: "{}".into(), notice: None }).unwrap();
    drop(queue);
    let board = Board::default();
    sender.run(&inbox, &board, &AtomicBool::new(false));
    board.notified.counts()
}

const SENT: (&str, &str) = ("webhook", "sent");
const FAILED: (&str, &str) = ("webhook", "failed");

#[test]
fn a_receiver_that_is_busy_is_tried_again() {
    let server = Server::answering(&["503 Busy", "429 Slow down", "200 OK"]);
    assert_eq!(send(&format!("url = \"{}\"", server.url("/hook"))), [(SENT, 1)]);
    assert_eq!(server.requests().len(), 3);
    assert_eq!(server.requests()[2].header("content-type"), Some("application/json"));
    assert!(server.requests()[0].head.starts_with("POST /hook HTTP/1.1\r\n"));
}

#[test]
fn a_receiver_that_refuses_is_not_tried_again() {
    let server = Server::answering(&["400 Bad Request"]);
    assert_eq!(send(&format!("url = \"{}\"", server.url("/"))), [(FAILED, 1)]);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn there_is_an_end_to_trying() {
    let server = Server::answering(&["500 Broken"]);
    assert_eq!(send(&format!("url = \"{}\"\nretries = 2", server.url("/"))), [(FAILED, 1)]);
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn redirects_are_not_followed() {
    let other = Server::answering(&["200 OK"]);
    let location = format!("307 Elsewhere\r\nLocation: {}", other.url("/"));
    let server = Server::answering(Box::leak(Box::new([&*location.leak()])));
    assert_eq!(send(&format!("url = \"{}\"", server.url("/"))), [(FAILED, 1)]);
    assert_eq!((server.requests().len(), other.requests().len()), (1, 0));
}

#[test]
fn a_receiver_that_never_answers_costs_its_time_and_no_more() {
    let server = Server::answering(&[""]);
    let begin = Instant::now();
    let url = server.url("/");
    assert_eq!(send(&format!("url = \"{url}\"\nretries = 0\ntimeout = \"300ms\"")), [(FAILED, 1)]);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn tokens_and_addresses_come_from_files() {
    let server = Server::answering(&["200 OK"]);
    let folder = tempfile::tempdir().unwrap();
    let (token, url) = (folder.path().join("token"), folder.path().join("url"));
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
fn a_webhook_hears_of_an_alert_and_of_its_end() {
    let server = Server::answering(&["200 OK"]);
    let shared = settings(&format!(
        "[alerts]\nleak_suspect = \"2s\"\nkeep_firing_for = \"2s\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nformat = \"alertmanager\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nformat = \"slack\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nmin_severity = \"critical\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"{}\"\nrules = [\"nearly_full\"]\n",
        server.url("/json"),
        server.url("/api/v2/alerts"),
        server.url("/slack"),
        server.url("/critical"),
        server.url("/full"),
    ));
    let mut watch = watch(&shared);
    for second in 0..5 {
        watch.look(&leak("41"), at(second), &clock(), &shared.alerts);
    }
    until("the first messages", || server.requests().len() == 3);
    for second in 5..20 {
        watch.look(&Figures::default(), at(second), &clock(), &shared.alerts);
    }
    until("the last messages", || server.requests().len() == 6);
    watch.finish(Duration::from_secs(5));
    assert_eq!(count(&shared, "webhook", "sent"), 6);
    let bodies = |path: &str| -> Vec<Value> {
        let requests = server.requests().into_iter();
        let ours = requests.filter(|request| request.head.starts_with(&format!("POST {path} ")));
        ours.map(|request| serde_json::from_str(&request.body).unwrap()).collect()
    };
    let json = bodies("/json");
    assert_eq!((&json[0]["state"], &json[1]["state"]), (&"firing".into(), &"resolved".into()));
    assert_eq!(json[0]["labels"]["pid"], "41");
    assert_eq!(json[0]["host"], "node-1");
    let alertmanager = bodies("/api/v2/alerts");
    assert_eq!(alertmanager[0][0]["labels"], alertmanager[1][0]["labels"], "one and the same");
    assert_eq!(alertmanager[0][0]["startsAt"], "2023-11-14T22:13:22.000+00:00");
    assert_eq!(alertmanager[0][0]["endsAt"], "2023-11-14T22:17:22.000+00:00");
    assert_eq!(alertmanager[1][0]["endsAt"], "2023-11-14T22:13:27.000+00:00");
    assert_eq!(bodies("/slack")[1]["attachments"][0]["color"], "good");
    assert!(bodies("/critical").is_empty() && bodies("/full").is_empty());
}

#[test]
fn a_receiver_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted() {
    let server = Server::answering(&[""]);
    let shared = settings(&format!(
        "[alerts]\nleak_suspect = \"0s\"\nkeep_firing_for = \"0s\"\n[[alerts.receiver]]\ntype = \"webhook\"\n\
         url = \"{}\"\nrate_limit = 1000\ntimeout = \"30s\"",
        server.url("/")
    ));
    let mut watch = watch(&shared);
    let begin = Instant::now();
    for second in 0..200 {
        let figures = if second % 2 == 0 { leak("41") } else { Figures::default() };
        watch.look(&figures, at(second), &clock(), &shared.alerts);
    }
    // One is on its way, 64 wait.
    assert!((134..=136).contains(&count(&shared, "webhook", "dropped")));
    watch.finish(Duration::from_millis(200));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// A server with TLS, of a certificate that nobody trusts by himself.
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

/// Runs openssl in a folder.
fn openssl(folder: &Path, line: &str) {
    let made = Command::new("openssl")
        .args(line.split(' '))
        .current_dir(folder)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success(), "openssl {line}");
}

#[test]
fn certificates_are_checked_against_those_of_the_host_or_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        folder.path(),
        &format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"),
    );
    openssl(folder.path(), &format!("req {key} -subj /CN=test -keyout key.pem -out request.pem"));
    let extensions = "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
    std::fs::write(folder.path().join("extensions"), extensions).unwrap();
    let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions";
    openssl(folder.path(), &format!("x509 -req -in request.pem {sign} -out cert.pem"));
    let mut server = Command::new("python3")
        .args(["-c", TLS, "cert.pem", "key.pem"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("url = \"https://127.0.0.1:{}/\"\nretries = 0\n", port.trim());
    let root = folder.path().join("ca.pem");
    let trusted = send(&format!("{url}ca_file = \"{}\"", root.display()));
    let strange = send(&url);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!((&trusted[..], &strange[..]), (&[(SENT, 1)][..], &[(FAILED, 1)][..]));
}
