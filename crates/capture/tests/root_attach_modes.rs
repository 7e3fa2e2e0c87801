//! Tries every attach mode on this kernel.

#![allow(clippy::panic, reason = "test code")]

use capture::plan::AttachMode;
use capture::session::{ActivityOptions, Session, SessionOptions, StackMode, Target, TensorMode};

#[test]
fn every_attach_mode_works_on_a_new_kernel() {
    let host = capture::session::probe_host();
    assert!(host.capabilities.bpf, "these tests need root");
    assert_eq!(host.tiers.len(), AttachMode::ALL.len());
    for (tier, outcome) in &host.tiers {
        // Older kernels lack the best modes; the single modes must always work.
        if host.kernel >= (6, 13) || *tier >= AttachMode::Single {
            assert_eq!(outcome, &Ok(()), "{tier}\n{}", capture::session::recent().join("\n"));
        }
    }
    let works = |tier: &AttachMode| host.tiers.contains(&(*tier, Ok(())));
    start_with_all_options(AttachMode::ALL.into_iter().filter(works));
}

/// Starts a session in each mode with all options. Not at the same time as the self-test, which
/// counts every hit of this process.
fn start_with_all_options(tiers: impl Iterator<Item = AttachMode>) {
    for tier in tiers {
        let options = SessionOptions {
            target: Target::Everybody,
            drivers: Vec::new(),
            ring_bytes: SessionOptions::RING_BYTES,
            table_entries: None,
            thread_entries: None,
            tier: Some(tier),
            work: Some(ActivityOptions::default()),
            objects: true,
            tensors: TensorMode::Full,
            stacks: StackMode::Full,
            stack_ring_bytes: SessionOptions::STACK_RING_BYTES,
            logs: SessionOptions::DEFAULT_LOG_DIR.into(),
            empty_probes: false,
        };
        if let Err(error) = Session::start(&options) {
            panic!("{tier}: {error}\n{}", capture::session::recent().join("\n"));
        }
    }
}
