//! HTML reports of incidents. They take longer than the incidents themselves, so a separate thread
//! renders them one by one, and the next incident does not wait.

use formats::sanitize::error_chain;
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};

use formats::report::html::InitialView;
use formats::report::incident::{HTML_FILE, RECORDING_FILE};

use crate::files::durable_file::DurableFile;
use crate::process::fault;
use crate::process::threads::Worker;
use crate::source::WriteHtml;

/// Maximum number of queued reports.
const MAX_QUEUED: usize = 8;

/// Renders HTML reports of incidents.
pub(crate) struct HtmlRenderer {
    write_html: WriteHtml,
    queue: VecDeque<(u64, PathBuf, InitialView)>,
    running: Option<(u64, Worker)>,
}

/// Result of rendering: the number of the incident, and the state for its `html_report` field.
pub(crate) type RenderResult = (u64, String);

impl HtmlRenderer {
    pub(crate) const fn new(write_html: WriteHtml) -> Self {
        Self { write_html, queue: VecDeque::new(), running: None }
    }

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
            let write_html = self.write_html;
            let work = move || {
                fault::point();
                let recording = dir.join(RECORDING_FILE);
                let write = |out: &mut dyn Write| write_html(&recording, initial_view, out);
                DurableFile::write(dir.join(HTML_FILE), write)
            };
            match Worker::spawn("page", work) {
                Ok(thread) => self.running = Some((number, thread)),
                Err(error) => {
                    return result.or(Some((
                        number,
                        format!("not written: {}", error_chain(error.as_ref())),
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
    let reason = format!("could not be written: {}", error_chain(error.as_ref()));
    tracing::warn!("HTML report of an incident {reason}");
    reason
}
