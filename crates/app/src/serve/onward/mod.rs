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

use super::{Part, Shared};

/// Starts a part for each receiver that the configuration names.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Vec<Part>> {
    let host = host();
    let config = &shared.config.exporters;
    let mut parts = Vec::new();
    #[cfg(feature = "otlp")]
    if let Some(settings) = &config.otlp {
        parts.push(otlp::start(shared, settings, &host)?);
    }
    if let Some(settings) = &config.pyroscope {
        parts.push(pyroscope::start(shared, settings, &host)?);
    }
    if let Some(settings) = &config.profiles {
        parts.push(profiles::start(shared, settings, &host)?);
    }
    #[cfg(feature = "parquet")]
    if let Some(settings) = &config.parquet {
        parts.push(parquet::start(shared, settings, &host)?);
    }
    Ok(parts)
}

/// What this machine calls itself.
fn host() -> String {
    match &*crate::host::name() {
        "" => "unknown".to_owned(),
        name => formats::plain::plain(name).into_owned(),
    }
}
