//! Advice for people.

use std::io::{self, Write};

use engine::units::Bytes;

use super::{Advice, GpuAdvice, Need, SENTENCE, StepObject};
use crate::export::text::Style;
use crate::plain::{plain, plain_up_to};

/// Steps of one GPU that are listed for people.
const LISTED: usize = 12;

/// Writes the advice. It may come from a file or another machine, so every text is cleaned again.
pub fn write(out: &mut dyn Write, advice: &Advice, style: Style) -> io::Result<()> {
    for (number, gpu) in advice.gpus.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        one(out, gpu, style)?;
    }
    if advice.gpus.is_empty() {
        writeln!(out, "No process holds GPU memory.")?;
    }
    for note in &advice.notes {
        writeln!(out, "\nNote: {}", plain_up_to(note, SENTENCE))?;
    }
    Ok(())
}

fn one(out: &mut dyn Write, gpu: &GpuAdvice, style: Style) -> io::Result<()> {
    writeln!(out, "{}", style.bold(&headline(gpu)))?;
    if let Some(need) = gpu.need {
        writeln!(out, "  {}", judged(need, gpu))?;
    }
    if gpu.steps.is_empty() {
        writeln!(out, "  No step would free memory.")?;
    }
    for (number, step) in gpu.steps.iter().take(LISTED).enumerate() {
        self::step(out, number + 1, step)?;
    }
    if let Some(more) = gpu.steps.len().checked_sub(LISTED).filter(|more| *more > 0) {
        writeln!(out, "  … {more} more (--format json lists all)")?;
    }
    Ok(())
}

fn headline(gpu: &GpuAdvice) -> String {
    let mut text = match gpu.gpu {
        Some(index) => format!("GPU {index}"),
        None => "All devices".to_owned(),
    };
    if let Some(name) = &gpu.name {
        text += &format!(" ({})", plain(name));
    }
    match (gpu.total_bytes, gpu.free_bytes) {
        (Some(total), Some(free)) => {
            text += &format!(": {} of {} free", Bytes(free), Bytes(total));
        }
        (None, Some(free)) => text += &format!(": {} free", Bytes(free)),
        (Some(total), None) => text += &format!(": {}, free memory unknown", Bytes(total)),
        (None, None) => text += ": free memory unknown",
    }
    text
}

fn judged(need: Need, gpu: &GpuAdvice) -> String {
    let wanted = Bytes(need.bytes);
    match (need.without_data_loss, need.steps) {
        (_, Some(0)) => format!("{wanted} is already free."),
        (true, _) => format!("{wanted} can be freed safely: see the steps marked safe."),
        (false, Some(1)) => format!("{wanted} requires step 1, which loses work."),
        (false, Some(steps)) => format!("{wanted} requires steps 1 to {steps}, which lose work."),
        (false, None) => {
            let known = if gpu.free_bytes.is_some() { "" } else { " (free memory unknown)" };
            format!("{wanted} cannot be freed even with all steps{known}.")
        }
    }
}

fn step(out: &mut dyn Write, number: usize, step: &StepObject) -> io::Result<()> {
    let who = format!("process {} ({})", step.pid, plain(&step.process));
    let what = match &*step.action {
        "empty_cache" => format!("empty PyTorch's cache in {who}"),
        "trim_pool" => format!("trim a memory pool of {who}"),
        "trim_graphs" => format!("trim what graphs of {who} reserve"),
        "stop_idle" => format!("stop {who}, which is idle"),
        "restart_leaking" => format!("restart {who}, which leaks"),
        "use_expandable_segments" => format!("enable expandable segments for PyTorch in {who}"),
        "reduce_memory_use" => format!("reduce memory use of {who}"),
        "stop" => format!("stop {who}"),
        other => format!("{}: {who}", plain(other)),
    };
    let gives = match (step.freed_bytes, &*step.precision) {
        (0, _) => String::new(),
        (bytes, "exact") => format!(": {}", Bytes(bytes)),
        (bytes, "upper_bound") => format!(": at most {}", Bytes(bytes)),
        (bytes, _) => format!(": about {}", Bytes(bytes)),
    };
    let safe = if step.safe { " (safe)" } else { "" };
    writeln!(out, "  {number}. {what}{gives}{safe}")?;
    writeln!(out, "     reason: {}", plain_up_to(&step.reason, SENTENCE))?;
    writeln!(out, "     cost:   {}", plain_up_to(&step.cost, SENTENCE))?;
    for command in &step.commands {
        let place = match &*command.language {
            "shell" => "$ ",
            "python" => "Python: ",
            "c" => "C: ",
            _ => "environment: ",
        };
        writeln!(out, "     {place}{}", plain_up_to(&command.text, SENTENCE))?;
    }
    Ok(())
}
