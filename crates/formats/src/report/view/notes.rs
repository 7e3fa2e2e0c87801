//! Notes on the accuracy of a view.

use engine::model::Bytes;
use engine::snapshot::LostTotals;
use engine::view::Note;

use crate::WallClock;
use crate::sanitize::sanitize;

/// Returns a note as one sentence without a full stop.
pub fn text(note: &Note, clock: Option<&WallClock>) -> String {
    match note {
        Note::CaptureEnded { at } => {
            let time = clock.map_or_else(String::new, |clock| format!(" at {}", clock.short(*at)));
            format!("NOT EXACT: capture ended{time}; later events are missing")
        }
        Note::NotExact { lost, unknown_context, ambiguous_calls, live } => {
            let mut reasons = lost_reasons(lost, clock);
            if *unknown_context > 0 {
                reasons.push(format!(
                    "{unknown_context} allocations are in unknown contexts and may have been \
                     released"
                ));
            }
            if *ambiguous_calls > 0 {
                reasons.push(format!(
                    "{ambiguous_calls} calls have an ambiguous effect: recorded by a stream capture or executed, racing with another thread, or interrupted by the end of the process"
                ));
            }
            let (min, max) = live;
            reasons.push(format!("true device memory of the listed processes is {min} to {max}"));
            format!("NOT EXACT: {}", reasons.join("; "))
        }
        Note::UnknownCalls { functions } => {
            let calls: Vec<String> = functions
                .iter()
                .map(|(name, calls)| {
                    let noun = if *calls == 1 { "call" } else { "calls" };
                    format!("{calls} {noun} of {}", sanitize(name))
                })
                .collect();
            let calls = calls.join(", ");
            format!(
                "NOT EXACT: {calls}: what they allocate is not counted; use a newer version of vramscope"
            )
        }
        Note::BeforeTrace { processes } => {
            let (subject, their) =
                if *processes == 1 { ("process", "its") } else { ("processes", "their") };
            let since = clock.map_or_else(String::new, |clock| {
                format!(" before {}", clock.time_of_day(clock.start()))
            });
            format!(
                "{processes} {subject} started before the trace: of {their} memory{since}, and of \
                 contexts and code, only the driver-reported total is known"
            )
        }
        Note::NoDeviceMemory { gpus } => {
            let gpus: Vec<String> = gpus.iter().map(|gpu| format!("GPU {}", gpu.0)).collect();
            format!(
                "the driver reports no device memory of {}, as for GPUs that share it with the CPU: total, \
                 free and other memory are unknown, traced memory is not affected",
                gpus.join(", ")
            )
        }
        Note::NoDriverUsage => {
            "the driver reports no usage: used memory is traced memory, without contexts and code"
                .to_owned()
        }
        Note::NoStack { allocations, total, lost } => {
            let share = *allocations as f64 * 100.0 / (*total).max(1) as f64;
            let lost =
                if *lost == 0 { String::new() } else { format!("; {lost} stacks were lost") };
            format!("{allocations} of {total} allocations have no call stack ({share:.1} %){lost}")
        }
        Note::OpaquePools { bytes, processes, allocators } => {
            let names: Vec<_> = allocators.iter().map(|one| one.library()).collect();
            let subject = if *processes == 1 { "process" } else { "processes" };
            format!(
                "{bytes} of {} in {processes} {subject} are pools whose inside is not visible: \
                 leaks in them are not found",
                names.join(", ")
            )
        }
        Note::CachedAtExit { bytes } => {
            format!("{bytes} held by caching allocators of frameworks at exit: not a leak")
        }
    }
}

fn lost_reasons(lost: &LostTotals, clock: Option<&WallClock>) -> Vec<String> {
    let mut reasons = Vec::new();
    if lost.events() > 0 {
        let since = lost.since.zip(clock);
        let since =
            since.map_or_else(String::new, |(at, clock)| format!(" since {}", clock.short(at)));
        reasons.push(format!(
            "{} events lost{since} ({} allocations of {}, {} frees, {} failures, {} others)",
            lost.events(),
            lost.allocations,
            Bytes(lost.allocated_bytes),
            lost.frees,
            lost.failures,
            lost.other,
        ));
    }
    match lost.processes {
        0 => {}
        1 => reasons.push("1 process is not listed: all its events were lost".to_owned()),
        n => reasons.push(format!("{n} processes are not listed: all their events were lost")),
    }
    reasons
}
