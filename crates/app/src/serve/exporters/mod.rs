//! Exporters: metrics to OpenTelemetry, profiles to Pyroscope or files, tables to Parquet files.

mod client;
mod delivery;
mod directory;
mod failure_log;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
pub(crate) mod pprof;
mod profile_files;
mod pyroscope;
mod ticker;

#[cfg(test)]
pub(crate) use ticker::tests::published;

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
        workers.push(profile_files::start(shared, exporter, &host)?);
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
        name => formats::sanitize::sanitize(name).into_owned(),
    }
}
