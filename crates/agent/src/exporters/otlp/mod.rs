//! Metrics to OpenTelemetry collectors: OTLP over HTTP, as protocol buffers.

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

use super::ticker::Ticker;
use crate::config::exporters::OtlpConfig;
use crate::delivery::http_client::{HttpClient, RequestError};
use crate::delivery::{DeliveryOptions, DeliveryQueue};
use crate::{AgentState, Worker};

/// Name in counts.
const NAME: &str = "otlp";

const PLAIN: &[(&str, &str)] = &[("Content-Type", "application/x-protobuf")];
const GZIP: &[(&str, &str)] =
    &[("Content-Type", "application/x-protobuf"), ("Content-Encoding", "gzip")];

/// Starts the worker that encodes metrics, and the one that sends them.
pub(super) fn start(
    shared: &Arc<AgentState>,
    config: &OtlpConfig,
    host: &str,
) -> Result<[Worker; 2]> {
    let client = HttpClient::new(config.http_endpoint())?;
    let options = DeliveryOptions {
        thread: "send-otlp",
        receiver: NAME,
        operation: format!("send metrics to {}", config.http_endpoint().url),
        capacity: 1,
        max_retry_time: config.max_retry_time.0,
        counts: |shared| &shared.exports,
    };
    let headers = if config.gzip { GZIP } else { PLAIN };
    let send = move |body: &Vec<u8>, timeout| {
        let response = client.post(headers, body, timeout)?;
        // Accepted in part: sending the rest again would fail again.
        rejected(&response).map_or(Ok(()), |reason| Err(RequestError::permanent(reason)))
    };
    let (queue, sender) = DeliveryQueue::start(shared, options, send)?;
    let (interval, gzip) = (config.interval.0, config.gzip);
    let resource = request::resource(host, &config.resource_attributes);
    let encoder = Worker::of_agent("export-otlp", shared, move |shared| {
        let mut ticker = Ticker::new(interval);
        while let Some(tick) = ticker.next(&shared.feed) {
            shared.exports.count(NAME, "dropped", tick.missed);
            let published = &tick.published;
            let (metrics, snapshot) = (&published.metrics, &published.snapshot);
            let request = request::request(resource.clone(), metrics, snapshot, &published.context);
            let bytes = request.encode_to_vec();
            queue.push(if gzip { compressed(&bytes)? } else { bytes });
        }
        Ok(())
    })?;
    Ok([encoder, sender])
}

fn compressed(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(bytes)?;
    gzip.finish()
}

/// Returns the error for data points that the collector rejected from an accepted request.
fn rejected(response: &[u8]) -> Option<String> {
    let partial = proto::Response::decode(response).ok()?.partial_success?;
    (partial.rejected_data_points > 0).then(|| {
        format!("{} data points rejected: {}", partial.rejected_data_points, partial.error_message)
    })
}
