//! The demo on the simulated driver: real probes on real processes.

use std::io::{self, Write};
use std::iter::Peekable;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::slice::Iter;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capture::session::{SessionOptions, Target};
use engine::model::{Pid, StackMode};

use crate::io::output;
use crate::io::output_file::shown;
use crate::live::pipeline::LiveTrace;
use crate::live::report_loop::{LiveFormat, LiveReport, LiveView, ReportOptions};
use crate::top::TopFrame;
use crate::top::source::live::LiveSource;
use crate::top::source::{RequestCell, Source};
use crate::{Outcome, cli};

/// Time between the demo's reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Rows per list of the last report.
const MAX_LAST_ROWS: usize = 20;

/// A workload that starts after a share of the demo's duration.
struct DemoStep {
    /// In percent of the duration.
    at: u32,
    title: &'static str,
    arguments: &'static [&'static str],
}

const STEPS: &[DemoStep] = &[
    DemoStep {
        at: 0,
        title: "A program allocates three buffers and frees two of them: watch the list shrink, and \
                what is left when it exits.",
        arguments: &["leak3", "--work-ms", "3000", "--wait-ms", "3000"],
    },
    DemoStep {
        at: 20,
        title: "A training loop frees what each step allocates, but keeps one buffer every 25 \
                steps: a growing leak.",
        arguments: &["train", "--steps", "100000", "--step-ms", "10", "--keep-every", "25"],
    },
    DemoStep {
        at: 50,
        title: "Four threads allocate 10 MiB at a time; one of them requests 2096 MiB once: an \
                anomaly.",
        arguments: &["anomaly", "--iter-ms", "150"],
    },
    DemoStep {
        at: 70,
        title: "A program allocates the rest of the 8 GiB until it is out of memory.",
        arguments: &["oom", "--chunk-mb", "768"],
    },
];

/// Names the state file of the simulated driver.
const STATE_FILE: &str = "SIM_STATE_FILE";

/// How long it runs by default.
const DURATION: Duration = Duration::from_secs(20);

/// Runs the demo: on a terminal in `top`, otherwise as reports.
pub(super) fn run(dir: &Path, options: &cli::DemoArgs) -> Result<Outcome> {
    let simulator = SimulatorPaths::find(dir)?;
    if std::env::var_os(STATE_FILE).is_none_or(|file| file != simulator.state_file) {
        return Err(simulator.start_again());
    }
    let own_pid = Pid(std::process::id());
    let live = LiveTrace::start(SessionOptions {
        drivers: vec![simulator.driver.clone()],
        objects: true,
        stacks: StackMode::Full,
        ..SessionOptions::new(Target::Processes { pids: vec![own_pid], follow: true })
    })?;
    if output::is_terminal() {
        let workloads = Workloads::new(simulator, DURATION);
        let source = SimulatorSource { live: LiveSource::new(live), workloads };
        return super::show(Box::new(source), 1.0, options);
    }
    let shown = ReportOptions { top: MAX_LAST_ROWS, ..ReportOptions::default() };
    let mut report =
        LiveReport::new(&live, shown, LiveView::Overview, LiveFormat::Text, output::results());
    report.verbose = false;
    announce(&format!(
        "Real eBPF probes (attach mode `{}`) on real processes; only the CUDA driver is simulated. \
         A report every {} seconds.",
        live.plan.as_ref().map_or("", |plan| plan.attach_mode.name()),
        REPORT_INTERVAL.as_secs()
    ))?;
    let mut workloads = Workloads::new(simulator, options.duration.unwrap_or(DURATION));
    run_steps(&live, &mut report, &mut workloads)?;
    workloads.stop();
    announce("The final report: what each program had not freed when it exited.")?;
    let (_, outcome) = report.finish(live)?;
    if outcome != Outcome::Success {
        return Ok(outcome);
    }
    announce(
        "Try next, on a machine with a GPU:\n  sudo vramscope trace\n  sudo vramscope trace -p PID \
         --leak 1\n  sudo vramscope trace --fail-on-leak -- python train.py\n  sudo vramscope doctor",
    )?;
    Ok(Outcome::Success)
}

/// Prints reports until the end of the demo.
fn run_steps(live: &LiveTrace, report: &mut LiveReport, workloads: &mut Workloads) -> Result<()> {
    let end = workloads.start + workloads.duration;
    let mut next_report = workloads.start + REPORT_INTERVAL;
    while Instant::now() < end && !report.has_failed() {
        workloads.start_due(announce)?;
        if Instant::now() >= next_report {
            report.report()?;
            next_report += REPORT_INTERVAL;
        }
        let poll_at = Instant::now() + Duration::from_millis(50);
        if let Some(message) = live.next(poll_at.min(next_report)) {
            report.handle(message);
        }
    }
    Ok(())
}

fn announce(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\n>>> {text}\n")?;
    out.flush()?;
    Ok(())
}

/// The trace, which also starts the workloads.
struct SimulatorSource {
    live: LiveSource,
    workloads: Workloads,
}

impl Source for SimulatorSource {
    fn name(&self) -> String {
        "simulated driver".to_owned()
    }

    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>> {
        self.workloads.start_due(|_| Ok(()))?;
        self.live.next(requests)
    }
}

/// The workloads; they are killed when the demo ends, also on an error.
struct Workloads {
    simulator: SimulatorPaths,
    running: Vec<Child>,
    steps: Peekable<Iter<'static, DemoStep>>,
    start: Instant,
    duration: Duration,
}

impl Workloads {
    fn new(simulator: SimulatorPaths, duration: Duration) -> Self {
        let (steps, start) = (STEPS.iter().peekable(), Instant::now());
        Self { simulator, running: Vec::new(), steps, start, duration }
    }

    /// Starts those that are due; `announce` gets their titles.
    fn start_due(&mut self, announce: impl Fn(&str) -> Result<()>) -> Result<()> {
        let (elapsed, duration) = (self.start.elapsed(), self.duration);
        while let Some(step) = self.steps.next_if(|step| elapsed >= duration * step.at / 100) {
            announce(step.title)?;
            self.running.push(self.simulator.start(step)?);
        }
        Ok(())
    }

    fn stop(&mut self) {
        for mut child in self.running.drain(..) {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Workloads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Paths of the simulated driver and its workloads.
struct SimulatorPaths {
    driver: PathBuf,
    workload: PathBuf,
    /// State file through which the workloads share one simulated GPU.
    state_file: PathBuf,
}

impl Drop for SimulatorPaths {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = std::fs::remove_file(&self.state_file);
    }
}

impl SimulatorPaths {
    fn find(dir: &Path) -> Result<Self> {
        let driver = dir.join("libcuda.so.1");
        let workload = dir.join("workload");
        for file in [&driver, &workload] {
            if !file.is_file() {
                bail!(
                    "{} is missing: run `./dev demo` in the source directory, which builds it",
                    shown(file)
                );
            }
        }
        let state_file = format!("vramscope-demo-{}", std::process::id());
        Ok(Self { driver, workload, state_file: std::env::temp_dir().join(state_file) })
    }

    /// Starts this program again in an environment that describes the simulated GPU, for its NVML and
    /// for the workloads. Returns only on an error.
    fn start_again(&self) -> anyhow::Error {
        let error = Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .env("LD_LIBRARY_PATH", self.driver.parent().unwrap_or(Path::new(".")))
            .env(STATE_FILE, &self.state_file)
            .env("SIM_DEVICES", "1")
            .env("SIM_MEMORY", "8G")
            .env("SIM_CONTEXT_OVERHEAD", "64M")
            .exec();
        anyhow::Error::new(error).context("cannot start the demo")
    }

    fn start(&self, step: &DemoStep) -> Result<Child> {
        Command::new(&self.workload)
            .args(step.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", shown(&self.workload)))
    }
}
