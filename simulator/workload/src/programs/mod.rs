//! The programs.

mod basic;
mod captures;
mod contexts;
mod copies;
mod launches;
mod leaks;
mod objects;
mod processes;
mod random;
mod stress;
mod threads;
mod torch;

use crate::cli::{Cli, Program};
use crate::cuda::{Device, Driver};

const MIB: usize = 1 << 20;

/// Runs the requested program.
pub(crate) fn run(arguments: &Cli) -> anyhow::Result<()> {
    let common = &arguments.common;
    let device = || Device::open(Driver::load()?, common.device);
    match &arguments.program {
        Program::Leak3(options) => basic::leak3(device()?, options),
        Program::Train(options) => threads::train(device()?, options),
        Program::Stressor(options) => processes::stressor(common, options),
        Program::StressorProcess(options) => processes::stress(device()?, common.seed, options),
        Program::Threads(options) => threads::threads(device()?, common.seed, options),
        Program::Anomaly(options) => threads::anomaly(device()?, options),
        Program::Spam(options) => stress::spam(device()?, options),
        Program::Hold(options) => stress::hold(device()?, options),
        Program::Oom(options) => stress::oom(device()?, options),
        Program::Contexts => contexts::run(Driver::load()?, common.device),
        Program::ContextStack(options) => {
            contexts::deep(Driver::load()?, common.device, options.depth)
        }
        Program::CaptureEnd(options) => captures::run(device()?, common.device, options.how),
        Program::OpenCaptures(options) => captures::open(Driver::load()?, common, options),
        Program::Kinds => basic::kinds(device()?),
        Program::Fork => processes::fork(common.device),
        Program::Exec => processes::exec(device()?, common),
        Program::Random(options) => random::run(Driver::load()?, common, options),
        Program::Launches(options) if options.processes > 1 => processes::launches(common, options),
        Program::Launches(options) => launches::run(device()?, options),
        Program::LaunchLate(options) => launches::late(device()?, options),
        Program::Copies(options) => copies::run(device()?, common.device, options),
        Program::Leaks(options) => leaks::run(common, options),
        Program::Objects(options) => objects::run(device()?, common, options),
        Program::TorchClean(options) => torch::train(common, options, false),
        Program::TorchLeak(options) => torch::train(common, options, true),
        Program::TorchSpam(options) => torch::spam(common, options),
        Program::Ipc => processes::ipc(device()?, common),
        Program::IpcChild(options) => processes::ipc_child(device()?, options),
        Program::DlopenLate(options) => {
            if !crate::signals::sleep_ms(options.delay_ms) {
                return Ok(());
            }
            basic::leak3(device()?, &options.then)
        }
    }
}
