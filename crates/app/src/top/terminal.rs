//! The terminal: raw mode and the alternate screen, and back whatever happens.

use std::io::{self, Read, Stdout, Write};
use std::mem::ManuallyDrop;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

use crate::io::output;
use crate::io::signals::pipe_of;

/// Time that the view has to end after its terminal was closed.
const HANGUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the terminal is in the state of the full-screen view. Locked while that changes: the
/// process may exit as soon as another thread finds that it does not have to restore the terminal.
static IS_ACTIVE: Mutex<bool> = Mutex::new(false);

/// The full-screen view of the terminal; dropping it restores the terminal.
pub(crate) struct Screen {
    /// Never dropped: its own restoring of the cursor panics if the terminal is closed.
    pub(crate) terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl Screen {
    /// Switches to the full-screen view. Messages are held back until it ends.
    pub(crate) fn open() -> Result<Self> {
        restore_on_panic();
        output::hold_messages();
        let opened = enter().and_then(|()| terminal());
        if opened.is_err() {
            leave();
            output::release_messages();
        }
        let terminal = opened.context("standard output: cannot use this terminal; use --once")?;
        Ok(Self { terminal })
    }

    /// Stops the process as Ctrl-Z does, with the terminal restored meanwhile.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        leave();
        signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
        enter()?;
        // A new one draws everything.
        self.terminal = terminal()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
        output::release_messages();
    }
}

fn terminal() -> io::Result<ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(io::stdout())).map(ManuallyDrop::new)
}

fn enter() -> io::Result<()> {
    *is_active() = true;
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Clear(ClearType::All))
}

fn is_active() -> MutexGuard<'static, bool> {
    IS_ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restores the terminal, if it is in the full-screen view. Errors are ignored: it may be closed.
fn leave() {
    let mut is_active = is_active();
    if std::mem::take(&mut *is_active) {
        let _ = execute!(io::stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
        let _ = io::stdout().flush();
        let _ = disable_raw_mode();
    }
}

/// A panic of any thread restores the terminal before it is reported.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            report(info);
        }));
    });
}

/// Signals that arrived.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    quit: Arc<AtomicBool>,
    suspend: Arc<AtomicBool>,
}

impl Signals {
    /// Watches for signals that end or stop the view.
    pub(crate) fn watch() -> Result<Self> {
        let signals = Self::default();
        for signal in [SIGINT, SIGTERM, SIGQUIT] {
            signal_hook::flag::register(signal, Arc::clone(&signals.quit))?;
        }
        signal_hook::flag::register(SIGTSTP, Arc::clone(&signals.suspend))?;
        let quit = Arc::clone(&signals.quit);
        let mut hangups = pipe_of(&[SIGHUP])?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if hangups.read_exact(&mut [0]).is_ok() {
                quit.store(true, Ordering::Relaxed);
                // Reading from a closed terminal may never return.
                std::thread::sleep(HANGUP_TIMEOUT);
                leave();
                std::process::exit(0);
            }
        })?;
        Ok(signals)
    }

    /// Whether the view should end.
    pub(crate) fn quits(&self) -> bool {
        self.quit.load(Ordering::Relaxed)
    }

    /// Whether the process should stop; resets that.
    pub(crate) fn take_suspend(&self) -> bool {
        self.suspend.swap(false, Ordering::Relaxed)
    }
}
