//! Profiles to Pyroscope, over its `/ingest` endpoint.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Result;
use formats::export::profile::AllocationBaseline;

use super::client::ExportClient;
use super::delivery::Delivery;
use super::pprof;
use super::ticker::Tick;
use crate::serve::config::exporters::Pyroscope;
use crate::serve::{AgentState, AgentThread};

/// Starts the worker.
pub(super) fn start(
    shared: &Arc<AgentState>,
    config: &Pyroscope,
    host: &str,
) -> Result<AgentThread> {
    let endpoint = config.http_endpoint();
    let client = ExportClient::new(&endpoint)?;
    let url = format!("{}/ingest", config.url.trim_end_matches('/'));
    let operation = format!("send profiles to {url}");
    let (interval, retry) = (config.interval.0, endpoint.retry);
    let name = application(config, host);
    let paths = shared.config.exporters.show_paths;
    AgentThread::spawn("export-pyroscope", shared, move |shared| {
        let delivery = Delivery::new("pyroscope", operation, interval, retry);
        // Pyroscope sums allocations, so each profile contains those since the last one.
        let mut last: Option<(AllocationBaseline, i64)> = None;
        let build = |tick: &Tick| {
            let published = &tick.published;
            let until = published.context.clock.nanos(published.snapshot.at) / NANOS;
            let (before, from) = last.take().unwrap_or_else(|| {
                // Allocations before the first profile are unknown.
                (AllocationBaseline::of(&published.snapshot), until - seconds(interval.as_secs()))
            });
            let body = pprof::since(published, &before, paths);
            last = Some((AllocationBaseline::of(&published.snapshot), until));
            Ok((query(&url, &name, from, until), body))
        };
        delivery.run(shared, build, |(url, body): &(String, Vec<u8>), timeout| {
            let headers = [("Content-Type", "application/octet-stream")];
            client.post(url, &headers, body, timeout).map(|_| None)
        });
        Ok(())
    })
}

const NANOS: i64 = 1_000_000_000;

fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(0)
}

/// Returns the application name and its labels in Pyroscope's syntax.
fn application(config: &Pyroscope, host: &str) -> String {
    let mut labels = config.labels.clone();
    labels.entry("host".into()).or_insert_with(|| host.to_owned());
    let labels: Vec<String> =
        labels.iter().map(|(name, text)| format!("{}={}", escape(name), escape(text))).collect();
    format!("{}{{{}}}", escape(&config.application_name), labels.join(","))
}

/// Replaces characters that would end the text.
fn escape(text: &str) -> String {
    let safe = |c: char| {
        let is_sign = matches!(c, '{' | '}' | ',' | '=' | '"') || c.is_control();
        if is_sign { '_' } else { c }
    };
    text.chars().map(safe).collect()
}

fn query(url: &str, name: &str, from: i64, until: i64) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    format!("{url}?name={encoded}&from={from}&until={until}&format=pprof&spyName=vramscope")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_escaped() {
        let text = "url = \"http://localhost/\"\napplication_name = \"gpu{x=1}\"\nlabels = { zone = \"a,b\" }";
        let config: Pyroscope = toml::from_str(text).unwrap();
        let name = application(&config, "node-7");
        assert_eq!(name, "gpu_x_1_{host=node-7,zone=a_b}");
        assert_eq!(
            query("u", &name, 5, 6),
            "u?name=gpu_x_1_%7Bhost%3Dnode-7%2Czone%3Da_b%7D&from=5&until=6&format=pprof&\
             spyName=vramscope"
        );
    }
}
