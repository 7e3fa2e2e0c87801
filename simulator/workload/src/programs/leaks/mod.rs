//! A corpus for leak classifiers: programs that leak and programs that only seem to, with labels.
//! Nothing here depends on how a classifier works.

mod caches;
mod churn;
mod device_memory;
mod exit;
mod frameworks;
mod growth;
mod healthy;
mod hidden;
mod kinds;
mod labels;
mod leaking;
mod objects;
mod resources;
mod scenario_thread;
mod segments;
mod sharing;
mod tensors;
mod together;

use anyhow::anyhow;

use super::MIB;
use crate::cli::{CommonArgs, Leaks};
use crate::cuda::{Device, Driver};
use scenario_thread::ScenarioThread;

const KIB: usize = 1 << 10;

/// Runs a scenario, or lists the labels of all.
pub(crate) fn run(common: &CommonArgs, options: &Leaks) -> anyhow::Result<()> {
    let driver = Driver::load();
    if options.list {
        crate::print_line(&labels::list(driver.ok()));
        return Ok(());
    }
    let name = options.name.as_deref().unwrap_or_default();
    let scenario = labels::all().find(|scenario| scenario.name == name).ok_or_else(|| {
        anyhow!("there is no scenario {name:?}: `workload leaks --list` lists them")
    })?;
    let seconds = options.seconds.unwrap_or_else(|| f64::from(scenario.seconds));
    let device = Device::open(driver?, common.device)?;
    let mut run =
        ScenarioThread::new(device, common.device, common.seed, seconds, !options.no_wait);
    (scenario.run)(&mut run)
}
