//! Exporters: metrics to OpenTelemetry, profiles to Pyroscope or files, tables to Parquet files.

mod beat;
mod client;
mod deliver;
mod folder;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
pub(crate) mod profile;
mod profiles;
mod pyroscope;
mod voice;

#[cfg(test)]
pub(crate) use beat::tests::published;

use std::sync::Arc;

use anyhow::Result;

use super::{AgentState, AgentThread};

/// Starts a worker for each configured exporter.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<Vec<AgentThread>> {
    let host = host();
    let config = &shared.config.exporters;
    let mut workers = Vec::new();
    #[cfg(feature = "otlp")]
    if let Some(exporter) = &config.otlp {
        workers.push(otlp::start(shared, exporter, &host)?);
    }
    if let Some(exporter) = &config.pyroscope {
        workers.push(pyroscope::start(shared, exporter, &host)?);
    }
    if let Some(exporter) = &config.profiles {
        workers.push(profiles::start(shared, exporter, &host)?);
    }
    #[cfg(feature = "parquet")]
    if let Some(exporter) = &config.parquet {
        workers.push(parquet::start(shared, exporter, &host)?);
    }
    Ok(workers)
}

/// Returns the name of this host.
fn host() -> String {
    match &*crate::host::name() {
        "" => "unknown".to_owned(),
        name => formats::plain::sanitize(name).into_owned(),
    }
}
