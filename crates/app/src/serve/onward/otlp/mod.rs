//! Metrics to collectors of OpenTelemetry: OTLP over HTTP, as protocol buffers.

mod mapping;
mod proto;
mod request;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::beat::Turn;
use super::client::Client;
use super::deliver::Delivery;
use crate::serve::config::onward::Otlp;
use crate::serve::{Part, Shared};

const PLAIN: &[(&str, &str)] = &[("Content-Type", "application/x-protobuf")];
const GZIP: &[(&str, &str)] =
    &[("Content-Type", "application/x-protobuf"), ("Content-Encoding", "gzip")];

/// Starts the part.
pub(super) fn start(shared: &Arc<Shared>, settings: &Otlp, host: &str) -> Result<Part> {
    let receiver = settings.receiver();
    let client = Client::new(&receiver)?;
    let url = format!("{}/v1/metrics", settings.endpoint.trim_end_matches('/'));
    let what = format!("send metrics to {url}");
    let (interval, retry, gzip) = (settings.interval.0, receiver.retry, settings.gzip);
    let resource = request::resource(host, &settings.resource_attributes);
    Part::spawn("export-otlp", shared, move |shared| {
        let delivery = Delivery::new("otlp", what, interval, retry);
        let make = |turn: &Turn| {
            let published = &turn.published;
            let (figures, snapshot) = (&published.figures, &published.snapshot);
            let request = request::request(resource.clone(), figures, snapshot, &published.names);
            let bytes = request.encode_to_vec();
            if gzip { compressed(&bytes).map_err(|error| error.to_string()) } else { Ok(bytes) }
        };
        let headers = if gzip { GZIP } else { PLAIN };
        delivery.run(shared, make, |body: &Vec<u8>, at_most| {
            client.post(&url, headers, body, at_most).map(|answer| rejected(&answer))
        });
        Ok(())
    })
}

fn compressed(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(bytes)?;
    gzip.finish()
}

/// What the collector did not take of a request that it took.
fn rejected(answer: &[u8]) -> Option<String> {
    let partial = proto::Response::decode(answer).ok()?.partial_success?;
    (partial.rejected_data_points > 0).then(|| {
        format!("{} data points rejected: {}", partial.rejected_data_points, partial.error_message)
    })
}
