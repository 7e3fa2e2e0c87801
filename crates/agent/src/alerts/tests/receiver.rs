//! A webhook server that records requests and returns given responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) head: String,
    pub(super) body: String,
}

impl Request {
    /// Returns the value of a header.
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
    /// Returns these responses in order, and the last one from then on. An empty response is never
    /// sent.
    pub(super) fn responding(responses: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), requests: Arc::default() };
        let requests = Arc::clone(&server.requests);
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let response = responses.get(index).or(responses.last()).unwrap();
                let Some((request, stream)) = stream.ok().and_then(read) else { continue };
                // Record the request first: the client may check right after the response.
                requests.lock().unwrap().push(request);
                serve(stream, response);
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

fn serve(mut stream: TcpStream, response: &str) {
    if response.is_empty() {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_mins(1));
            drop(stream);
        });
        return;
    }
    let response = format!("HTTP/1.1 {response}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(response.as_bytes());
}
