//! Built-in alerts, for hosts without Prometheus: rules over what is published, and what is done when
//! one of them fires.

mod board;
mod command;
mod log;
mod notice;
mod outlet;
mod shapes;
mod sync;
mod teller;
mod watch;
mod webhook;

#[cfg(test)]
mod tests;

pub(crate) use board::{AlertView, Board};

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::{Part, Shared};
use crate::output;
use outlet::Outlet;
use watch::Watch;

/// How long the part waits for something new before it looks whether there will be more.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long messages that are on their way may take when the agent ends.
const GRACE: Duration = Duration::from_secs(2);

/// Starts the part that looks at figures and tells people. A token that cannot be read fails here.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Part> {
    let config = &shared.config.alerts;
    let mut outlets = Vec::new();
    if config.enabled {
        let host = notice::host();
        for action in config.actions() {
            outlets.push(Outlet::start(action, &host, shared)?);
        }
    }
    Part::spawn("alerts", shared, move |shared| run(shared, outlets))
}

fn run(shared: &Arc<Shared>, outlets: Vec<Outlet>) -> Result<()> {
    let config = &shared.config.alerts;
    if !config.enabled {
        // A part that ends takes the agent with it.
        while !shared.feed.is_closed() {
            let _ = shared.feed.newer(u64::MAX, PATIENCE);
        }
        return Ok(());
    }
    let mut watch = Watch::new(config, outlets);
    let mut seen = 0;
    let mut passed_over = 0;
    loop {
        if let Some(error) = watch.failure() {
            return Err(error);
        }
        let Some(published) = shared.feed.newer(seen, PATIENCE) else {
            if shared.feed.is_closed() {
                break;
            }
            continue;
        };
        seen = published.sequence;
        let now = published.snapshot.at;
        watch.look(&published.figures, now, &published.names.clock, &shared.alerts);
        if passed_over == 0 && watch.passed_over() > 0 {
            passed_over = watch.passed_over();
            output::complain("too many alerts: some are not reported");
        }
    }
    watch.finish(GRACE);
    Ok(())
}
