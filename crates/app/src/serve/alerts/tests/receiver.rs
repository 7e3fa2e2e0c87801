//! A receiver of webhooks: remembers requests, and answers as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request that came.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) head: String,
    pub(super) body: String,
}

impl Request {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

#[derive(Clone)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers with these, one after the other; the last one for ever. An empty answer never comes.
    pub(super) fn answering(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), requests: Arc::default() };
        let requests = Arc::clone(&server.requests);
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let answer = answers.get(index).or(answers.last()).unwrap();
                let Some((request, stream)) = stream.ok().and_then(read) else { continue };
                // Whoever has the answer may look at once.
                requests.lock().unwrap().push(request);
                serve(stream, answer);
            }
        });
        server
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

fn read(stream: TcpStream) -> Option<(Request, TcpStream)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut request = Request { head, body: String::new() };
    let length = request.header("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).ok()?;
    Some((request, reader.into_inner()))
}

fn serve(mut stream: TcpStream, answer: &str) {
    if answer.is_empty() {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(60));
            drop(stream);
        });
        return;
    }
    let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes());
}
