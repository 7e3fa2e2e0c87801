//! Profiles to Pyroscope, by its way in for profiles of others (`/ingest`).

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Result;
use formats::export::profile::Allocated;

use super::beat::Turn;
use super::client::Client;
use super::deliver::Delivery;
use super::profile;
use crate::serve::config::onward::Pyroscope;
use crate::serve::{Part, Shared};

/// Starts the part.
pub(super) fn start(shared: &Arc<Shared>, settings: &Pyroscope, host: &str) -> Result<Part> {
    let receiver = settings.receiver();
    let client = Client::new(&receiver)?;
    let url = format!("{}/ingest", settings.url.trim_end_matches('/'));
    let what = format!("send profiles to {url}");
    let (interval, retry) = (settings.interval.0, receiver.retry);
    let name = application(settings, host);
    let paths = shared.config.exporters.show_paths;
    Part::spawn("export-pyroscope", shared, move |shared| {
        let delivery = Delivery::new("pyroscope", what, interval, retry);
        // What was allocated is added up there: each profile tells what came since the last one.
        let mut last: Option<(Allocated, i64)> = None;
        let make = |turn: &Turn| {
            let published = &turn.published;
            let until = published.names.clock.nanos(published.snapshot.at) / NANOS;
            let (before, from) = last.take().unwrap_or_else(|| {
                // Nothing is known of what came before the first one.
                (Allocated::of(&published.snapshot), until - seconds(interval.as_secs()))
            });
            let body = profile::since(published, &before, paths);
            last = Some((Allocated::of(&published.snapshot), until));
            Ok((query(&url, &name, from, until), body))
        };
        delivery.run(shared, make, |(url, body): &(String, Vec<u8>), at_most| {
            let headers = [("Content-Type", "application/octet-stream")];
            client.post(url, &headers, body, at_most).map(|_| None)
        });
        Ok(())
    })
}

const NANOS: i64 = 1_000_000_000;

fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(0)
}

/// The program and its labels, in the form that Pyroscope has for them.
fn application(settings: &Pyroscope, host: &str) -> String {
    let mut labels = settings.labels.clone();
    labels.entry("host".into()).or_insert_with(|| host.to_owned());
    let labels: Vec<String> =
        labels.iter().map(|(name, text)| format!("{}={}", word(name), word(text))).collect();
    format!("{}{{{}}}", word(&settings.application_name), labels.join(","))
}

/// A text without the letters that would end it.
fn word(text: &str) -> String {
    let safe = |letter: char| {
        let is_sign = matches!(letter, '{' | '}' | ',' | '=' | '"') || letter.is_control();
        if is_sign { '_' } else { letter }
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
    fn names_and_labels_cannot_end_themselves() {
        let text = "url = \"http://localhost/\"\napplication_name = \"gpu{x=1}\"\nlabels = { zone = \"a,b\" }";
        let settings: Pyroscope = toml::from_str(text).unwrap();
        let name = application(&settings, "node-7");
        assert_eq!(name, "gpu_x_1_{host=node-7,zone=a_b}");
        assert_eq!(
            query("u", &name, 5, 6),
            "u?name=gpu_x_1_%7Bhost%3Dnode-7%2Czone%3Da_b%7D&from=5&until=6&format=pprof&\
             spyName=vramscope"
        );
    }
}
