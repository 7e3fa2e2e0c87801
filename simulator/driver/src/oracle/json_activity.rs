//! The activity part of the oracle: launches, copies and failed calls.

use std::io::{self, Write};

use crate::oracle::activity::{KernelLaunches, LaunchShape};
use crate::oracle::json::text;
use crate::state::DriverState;

/// Writes this part.
pub(crate) fn write(state: &DriverState, out: &mut impl Write) -> io::Result<()> {
    let launches = state.modules.launches();
    let launches = launches.iter().map(|((name, handle, handle_type), launches)| {
        format!(
            "{{\"name\": {}, \"function\": \"{handle:#x}\", \"type\": \"{}\", {}}}",
            text(&name.to_string_lossy()),
            handle_type.name(),
            counts(launches)
        )
    });
    list(out, "launches", launches)?;
    let graphs = state.activity.graphs.iter().map(|(exec, graph)| {
        format!(
            "{{\"exec\": \"{exec:#x}\", \"launches\": {}, \"failed\": {}}}",
            graph.launches, graph.failed
        )
    });
    list(out, "graph_launches", graphs)?;
    let copies =
        state.activity.copies.iter().map(|((function, direction, asynchronous), copies)| {
            format!(
                "{{\"function\": \"{function}\", \"direction\": \"{}\", \"mode\": \"{}\", \
             \"calls\": {}, \"bytes\": {}, \"captured\": {}, \"failed\": {}}}",
                direction.name(),
                if *asynchronous { "async" } else { "sync" },
                copies.calls,
                copies.bytes,
                copies.captured,
                copies.failed
            )
        });
    list(out, "copies", copies)?;
    let errors = state.activity.errors.iter().map(|((function, code), count)| {
        format!("{{\"function\": \"{function}\", \"code\": {code}, \"count\": {count}}}")
    });
    list(out, "errors", errors)
}

fn list(out: &mut impl Write, name: &str, entries: impl Iterator<Item = String>) -> io::Result<()> {
    write!(out, "  \"{name}\": [")?;
    let mut separator = "\n";
    for entry in entries {
        write!(out, "{separator}    {entry}")?;
        separator = ",\n";
    }
    writeln!(out, "\n  ],")
}

fn counts(launches: &KernelLaunches) -> String {
    let shapes = launches.shapes.iter();
    let shapes: Vec<String> =
        shapes.map(|(shape, count)| format!("{{{}, \"count\": {count}}}", sizes(shape))).collect();
    let last = launches.last.as_ref().map(|last| format!("{{{}}}", sizes(last)));
    format!(
        "\"launches\": {}, \"captured\": {}, \"failed\": {}, \"shapes\": [{}], \"last\": {}",
        launches.launches,
        launches.captured,
        launches.failed,
        shapes.join(", "),
        last.as_deref().unwrap_or("null")
    )
}

fn sizes(shape: &LaunchShape) -> String {
    let LaunchShape { grid, block, shared } = shape;
    format!("\"grid\": {grid:?}, \"block\": {block:?}, \"shared\": {shared}")
}
