//! Pages of folders take longer than the folders themselves: a thread of their own makes them, one after
//! the other, so that the next incident does not wait for them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::Result;
use formats::export::incident::{PAGE, RECORDING};
use formats::export::page::Opens;
use formats::import::gather::Only;

use super::folder;
use crate::commands::picture::{self, Wanted};
use crate::threads::Worker;
use crate::{cli, fault, output};

/// Pages that may wait.
const WAITING: usize = 8;

/// See the module.
#[derive(Default)]
pub(crate) struct Pages {
    waiting: VecDeque<(u64, PathBuf, Opens)>,
    running: Option<(u64, Worker)>,
}

/// How a page came out: the number of its incident, and what the folder says of it.
pub(crate) type Made = (u64, String);

impl Pages {
    /// A folder wants its page. Where too many wait, it is told at once that there will be none.
    pub(crate) fn add(&mut self, number: u64, folder: &Path, opens: Opens) -> Option<Made> {
        if self.waiting.len() >= WAITING {
            let why =
                format!("not made: too many pending; run vramscope plot {RECORDING} -o {PAGE}");
            return Some((number, why));
        }
        self.waiting.push_back((number, folder.into(), opens));
        None
    }

    /// The page that is done since the last time; the next one begins.
    pub(crate) fn turn(&mut self) -> Option<Made> {
        let done = self.running.take_if(|(_, thread)| thread.is_finished());
        let made = done.map(|(number, thread)| (number, outcome(thread)));
        if self.running.is_none()
            && let Some((number, folder, opens)) = self.waiting.pop_front()
        {
            let work = move || {
                fault::point();
                make(&folder, opens)
            };
            match Worker::spawn("page", work) {
                Ok(thread) => self.running = Some((number, thread)),
                Err(error) => {
                    return made
                        .or(Some((number, format!("not made: {}", output::reasons(&error)))));
                }
            }
        }
        made
    }

    /// Waits for the one that is being made; the others are not made any more.
    pub(crate) fn finish(&mut self) -> Vec<Made> {
        let last = self.running.take().map(|(number, thread)| (number, outcome(thread)));
        let others = self.waiting.drain(..);
        let others = others.map(|(number, ..)| (number, "not made: the agent ended".to_owned()));
        last.into_iter().chain(others).collect()
    }
}

fn outcome(thread: Worker) -> String {
    let Err(error) = thread.join() else { return "written".into() };
    let why = format!("could not be made: {}", output::reasons(&error));
    output::complain(&format!("HTML report of an incident {why}"));
    why
}

fn make(path: &Path, opens: Opens) -> Result<()> {
    let recording = path.join(RECORDING);
    let overlay = cli::Overlay { smi_log: None, smi_offset: None };
    let wanted = Wanted { path: &recording, only: Only::default(), overlay: &overlay };
    folder::put(path, PAGE, |out| picture::write_page(&wanted, opens, out))
}
