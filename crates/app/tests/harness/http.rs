//! HTTP requests and responses.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Time limit for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// An HTTP response.
pub struct Response {
    /// 0 if it is not an HTTP response.
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\n{}", self.head, String::from_utf8_lossy(&self.body))
    }
}

pub fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    Ok(stream)
}

/// Sends a raw request, and reads until the connection ends.
pub fn send(address: &str, request: &str) -> io::Result<Response> {
    let mut stream = connect(address)?;
    // A request that is rejected early may find the connection closed while it is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
    let body = bytes.get(end + 4..).unwrap_or_default().to_vec();
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Response { status, head, body })
}

/// Requests a path. HTTP 1.0, so that the response is not chunked.
pub fn get(address: &str, path: &str, headers: &str) -> io::Result<Response> {
    send(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n"))
}

/// Percent-encodes a text for a URL.
pub fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Responds to one request with `response`; the handle returns the request.
pub fn serve_once(response: String) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let url = ["http:", "", &address].join("/");
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let count = stream.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..count]);
        }
        stream.write_all(response.as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    });
    (url, thread)
}

/// Returns a response with a body.
pub fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}
