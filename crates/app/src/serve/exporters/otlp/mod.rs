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

use super::client::ExportClient;
use super::delivery::Delivery;
use super::ticker::Tick;
use crate::serve::config::exporters::Otlp;
use crate::serve::{AgentState, AgentThread};

const PLAIN: &[(&str, &str)] = &[("Content-Type", "application/x-protobuf")];
const GZIP: &[(&str, &str)] =
    &[("Content-Type", "application/x-protobuf"), ("Content-Encoding", "gzip")];

/// Starts the worker.
pub(super) fn start(shared: &Arc<AgentState>, config: &Otlp, host: &str) -> Result<AgentThread> {
    let endpoint = config.http_endpoint();
    let client = ExportClient::new(&endpoint)?;
    let url = format!("{}/v1/metrics", config.endpoint.trim_end_matches('/'));
    let operation = format!("send metrics to {url}");
    let (interval, retry, gzip) = (config.interval.0, endpoint.retry, config.gzip);
    let resource = request::resource(host, &config.resource_attributes);
    AgentThread::spawn("export-otlp", shared, move |shared| {
        let delivery = Delivery::new("otlp", operation, interval, retry);
        let build = |tick: &Tick| {
            let published = &tick.published;
            let (metrics, snapshot) = (&published.metrics, &published.snapshot);
            let request = request::request(resource.clone(), metrics, snapshot, &published.context);
            let bytes = request.encode_to_vec();
            if gzip { compressed(&bytes).map_err(|error| error.to_string()) } else { Ok(bytes) }
        };
        let headers = if gzip { GZIP } else { PLAIN };
        delivery.run(shared, build, |body: &Vec<u8>, timeout| {
            client.post(&url, headers, body, timeout).map(|response| rejected(&response))
        });
        Ok(())
    })
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
