//! HTML reports of incidents. They take longer than the incidents themselves, so a separate thread
//! renders them one by one, and the next incident does not wait.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::Result;
use formats::import::collecting_sink::ChangeFilter;
use formats::report::html::InitialView;
use formats::report::incident::{HTML_FILE, RECORDING_FILE};

use super::directory;
use crate::files::plot_data;
use crate::files::plot_data::PlotRequest;
use crate::io::output;
use crate::threads::Worker;
use crate::{cli, fault};

/// Maximum number of queued reports.
const MAX_QUEUED: usize = 8;

/// Renders HTML reports of incidents.
#[derive(Default)]
pub(crate) struct HtmlRenderer {
    queue: VecDeque<(u64, PathBuf, InitialView)>,
    running: Option<(u64, Worker)>,
}

/// Result of rendering: the number of the incident, and the state for its `html_report` field.
pub(crate) type RenderResult = (u64, String);

impl HtmlRenderer {
    /// Queues the report of an incident. Returns a result at once if the queue is full.
    pub(crate) fn add(
        &mut self,
        number: u64,
        dir: &Path,
        initial_view: InitialView,
    ) -> Option<RenderResult> {
        if self.queue.len() >= MAX_QUEUED {
            let reason = format!(
                "not written: too many pending; run vramscope plot {RECORDING_FILE} -o {HTML_FILE}"
            );
            return Some((number, reason));
        }
        self.queue.push_back((number, dir.into(), initial_view));
        None
    }

    /// Returns the report that was completed since the last call, and starts the next one.
    pub(crate) fn poll(&mut self) -> Option<RenderResult> {
        let finished = self.running.take_if(|(_, thread)| thread.is_finished());
        let result = finished.map(|(number, thread)| (number, outcome(thread)));
        if self.running.is_none()
            && let Some((number, dir, initial_view)) = self.queue.pop_front()
        {
            let work = move || {
                fault::point();
                render(&dir, initial_view)
            };
            match Worker::spawn("page", work) {
                Ok(thread) => self.running = Some((number, thread)),
                Err(error) => {
                    return result.or(Some((
                        number,
                        format!("not written: {}", output::error_chain(&error)),
                    )));
                }
            }
        }
        result
    }

    /// Waits for the running report; queued ones are dropped.
    pub(crate) fn finish(&mut self) -> Vec<RenderResult> {
        let last = self.running.take().map(|(number, thread)| (number, outcome(thread)));
        let others = self.queue.drain(..);
        let others = others.map(|(number, ..)| (number, "not written: agent exited".to_owned()));
        last.into_iter().chain(others).collect()
    }
}

fn outcome(thread: Worker) -> String {
    let Err(error) = thread.join() else { return "written".into() };
    let reason = format!("could not be written: {}", output::error_chain(&error));
    output::log(&format!("HTML report of an incident {reason}"));
    reason
}

fn render(path: &Path, initial_view: InitialView) -> Result<()> {
    let recording = path.join(RECORDING_FILE);
    let overlay = cli::SmiArgs { smi_log: None, smi_offset: None };
    let request =
        PlotRequest { path: &recording, filter: ChangeFilter::default(), overlay: &overlay };
    directory::write_atomically(path, HTML_FILE, |out| {
        plot_data::write_page(&request, initial_view, out)
    })
}
