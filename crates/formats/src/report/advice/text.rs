//! Advice as text.

use std::io::{self, Write};

use engine::model::Bytes;

use super::{AdviceReport, GpuAdvice, MAX_SENTENCE_CHARS, NeedResult, StepJson};
use crate::report::live::text::TextStyle;
use crate::report::text_page::TextPage;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Maximum number of steps per GPU in the text.
const MAX_LISTED_STEPS: usize = 12;

/// Writes the advice. It may come from a file or another host, so every text is sanitized again.
pub fn write(out: &mut dyn Write, advice: &AdviceReport, style: TextStyle) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    for (number, gpu) in advice.gpus.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write_gpu(out, gpu)?;
    }
    if advice.gpus.is_empty() {
        writeln!(out, "No process holds GPU memory.")?;
    }
    for note in &advice.notes {
        writeln!(out)?;
        write_wrapped(out, "Note: ", note)?;
    }
    Ok(())
}

fn write_gpu(out: &mut TextPage<'_>, gpu: &GpuAdvice) -> io::Result<()> {
    out.bold(&headline(gpu))?;
    if let Some(need) = gpu.need {
        writeln!(out, "  {}", need_line(need, gpu))?;
    }
    if gpu.steps.is_empty() {
        writeln!(out, "  No step would free memory.")?;
    }
    let listed = &gpu.steps[..listed(gpu)];
    for (number, step) in listed.iter().enumerate() {
        let text = action(step, &process(step));
        write_wrapped(out, &format!("  {}. ", number + 1), &text)?;
        write_details(out, step)?;
        for other in step.alternatives.iter().filter(|other| !gpu.is_small(other)) {
            let also = if step.safe && other.safe { "also" } else { "or" };
            write_wrapped(out, &format!("     {also} "), &action(other, "it"))?;
            write_details(out, other)?;
        }
    }
    match gpu.steps.len() - listed.len() {
        0 => Ok(()),
        more => writeln!(out, "  … {more} more with less effect (--format json lists all)"),
    }
}

/// Returns how many steps are listed: those that free much, and as many as are needed.
fn listed(gpu: &GpuAdvice) -> usize {
    let large = gpu.steps.iter().filter(|step| !gpu.is_small(step)).count();
    let needed = gpu.need.and_then(|need| need.steps).unwrap_or(0);
    let listed = if large == 0 { gpu.steps.len() } else { large.max(needed) };
    listed.min(MAX_LISTED_STEPS).min(gpu.steps.len())
}

fn headline(gpu: &GpuAdvice) -> String {
    let mut text = match gpu.gpu {
        Some(index) => format!("GPU {index}"),
        None => "All devices".to_owned(),
    };
    if let Some(name) = &gpu.name {
        text += &format!(" ({})", sanitize(name));
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

fn need_line(need: NeedResult, gpu: &GpuAdvice) -> String {
    let bytes = Bytes(need.bytes);
    match (need.without_data_loss, need.steps) {
        (_, Some(0)) => format!("{bytes} is already free."),
        (true, _) => format!("{bytes} can be freed safely: see the steps marked safe."),
        (false, Some(1)) => format!("{bytes} requires the end of the process of step 1."),
        (false, Some(steps)) => {
            format!("{bytes} requires the end of the processes of steps 1 to {steps}.")
        }
        (false, None) => {
            let known = if gpu.free_bytes.is_some() { "" } else { " (free memory unknown)" };
            format!("{bytes} cannot be freed even with all steps{known}.")
        }
    }
}

/// Returns `process 4711 (train.py of ann)`.
fn process(step: &StepJson) -> String {
    let program = if step.program.is_empty() { &step.process } else { &step.program };
    let user = match &*step.user {
        "" => String::new(),
        user => format!(" of {}", sanitize(user)),
    };
    format!("process {} ({}{user})", step.pid, sanitize(program))
}

/// Returns what to do with a process, and what that frees.
fn action(step: &StepJson, process: &str) -> String {
    let action = match &*step.action {
        "empty_cache" => format!("empty PyTorch's cache in {process}"),
        "trim_pool" => format!("trim a memory pool of {process}"),
        "trim_graphs" => format!("trim what graphs of {process} reserve"),
        "stop_idle" => format!("stop {process}, which is idle"),
        "restart_leaking" => format!("restart {process}, which leaks"),
        "use_expandable_segments" => format!("enable expandable segments for PyTorch in {process}"),
        "reduce_memory_use" => format!("reduce memory use of {process}"),
        "stop" => format!("stop {process}"),
        other => format!("{}: {process}", sanitize(other)),
    };
    let freed = match (step.freed_bytes, &*step.precision) {
        (0, _) => String::new(),
        (bytes, "exact") => format!(": {}", Bytes(bytes)),
        (bytes, "upper_bound") => format!(": at most {}", Bytes(bytes)),
        (bytes, _) => format!(": about {}", Bytes(bytes)),
    };
    let safe = if step.safe { " (safe)" } else { "" };
    format!("{action}{freed}{safe}")
}

fn write_details(out: &mut TextPage<'_>, step: &StepJson) -> io::Result<()> {
    write_wrapped(out, "     reason: ", &step.reason)?;
    write_wrapped(out, "     cost:   ", &step.cost)?;
    for command in &step.commands {
        let prefix = match &*command.language {
            "shell" => "$ ",
            "python" => "Python: ",
            "c" => "C: ",
            _ => "environment: ",
        };
        writeln!(out, "     {prefix}{}", sanitize_up_to(&command.text, MAX_SENTENCE_CHARS))?;
    }
    Ok(())
}

/// Writes a text whose later lines are indented like the first.
fn write_wrapped(out: &mut TextPage<'_>, prefix: &str, text: &str) -> io::Result<()> {
    let text = sanitize_up_to(text, MAX_SENTENCE_CHARS);
    out.wrapped(TextStyle::plain, &format!("{prefix}{text}"), prefix.len())?;
    Ok(())
}
