//! Programs that use CUDA memory in known ways, on the driver that the dynamic linker finds.
//!
//! Each subcommand is a small CUDA program: it checks every result, exits cleanly when it receives
//! a stop signal, and leaves exactly the memory live that its description says.

mod cli;
mod cuda;
mod programs;
mod signals;
mod structs;

use std::ffi::CStr;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = cli::Cli::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log_error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &cli::Cli) -> anyhow::Result<()> {
    signals::install()?;
    name_thread(&arguments.common.process_name);
    if arguments.common.wait_start {
        print_line("ready");
        if !signals::wait_for_start() {
            return Ok(());
        }
    }
    programs::run(arguments)?;
    signals::sleep_ms(arguments.common.hold_ms);
    Ok(())
}

/// Names the main thread independently of the program's file.
fn name_thread(name: &CStr) {
    // SAFETY: the name ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Prints a line to standard output. A closed output is not an error.
fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Prints an error.
fn log_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "workload: {text}");
}
