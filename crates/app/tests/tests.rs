//! Tests of the binary: the command line, files, documentation, and live traces on the simulated
//! driver (`e2e_*`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do"
)]

mod bench;
mod cli;
mod deploy;
mod docs;
mod doctor;
mod e2e_advise;
mod e2e_agent;
mod e2e_alerts;
mod e2e_allocators;
mod e2e_capabilities;
mod e2e_captures;
mod e2e_containers;
mod e2e_contexts;
mod e2e_driver_usage;
mod e2e_exit;
mod e2e_explain;
mod e2e_exporters;
mod e2e_failures;
mod e2e_faults;
mod e2e_hardening;
mod e2e_identity;
mod e2e_incidents;
mod e2e_inject;
mod e2e_kernels;
mod e2e_leaks;
mod e2e_libraries;
mod e2e_limits;
mod e2e_losses;
mod e2e_marks;
mod e2e_newer_driver;
mod e2e_objects;
mod e2e_oracle;
mod e2e_output;
mod e2e_python;
mod e2e_random;
mod e2e_record;
mod e2e_recovery;
mod e2e_serve;
mod e2e_sharing;
mod e2e_stacks;
mod e2e_targets;
mod e2e_torch;
mod e2e_verdicts;
mod experiments;
mod exports;
mod harness;
mod html_report;
mod live_page;
mod plot;
mod profile;
mod prometheus;
mod python;
mod replay;
mod report;
mod terminal;
mod top;
