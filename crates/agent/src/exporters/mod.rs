//! Exporters: metrics to OpenTelemetry collectors, tables as Parquet files.

mod otlp;
mod parquet;
mod retention;
mod ticker;

#[cfg(test)]
pub(crate) use ticker::tests::published;

use std::sync::Arc;

use anyhow::Result;

use super::{AgentState, Worker};

/// Starts the workers of each configured exporter.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<Vec<Worker>> {
    let host = host();
    let config = &shared.config.exporters;
    let mut workers = Vec::new();
    if let Some(exporter) = &config.otlp {
        workers.extend(otlp::start(shared, exporter, &host)?);
    }
    if let Some(exporter) = &config.parquet {
        workers.push(parquet::start(shared, exporter, &host)?);
    }
    Ok(workers)
}

/// Returns the name of this host.
fn host() -> String {
    match &*formats::hostname::name() {
        "" => "unknown".to_owned(),
        name => formats::sanitize::sanitize(name).into_owned(),
    }
}
