//! Tries every attach mode on this kernel.

#![allow(clippy::panic, reason = "test code")]

use capture::plan::Tier;
use capture::session::{Options, Session, Stacks, Target, Tensors, Work};

#[test]
fn every_attach_mode_works_on_a_new_kernel() {
    let host = capture::session::examine();
    assert!(host.capabilities.bpf, "these tests need root");
    assert_eq!(host.tiers.len(), Tier::ALL.len());
    for (tier, outcome) in &host.tiers {
        // Older kernels lack the best modes; the single modes must always work.
        if host.kernel >= (6, 13) || *tier >= Tier::Single {
            assert_eq!(
                outcome,
                &Ok(()),
                "{tier}\n{}",
                capture::session::last_messages().join("\n")
            );
        }
    }
    let works = |tier: &Tier| host.tiers.contains(&(*tier, Ok(())));
    start_with_all_options(Tier::ALL.into_iter().filter(works));
}

/// Starts a session in each mode with all options. Not at the same time as the self-test, which
/// counts every hit of this process.
fn start_with_all_options(tiers: impl Iterator<Item = Tier>) {
    for tier in tiers {
        let options = Options {
            target: Target::Everybody,
            drivers: Vec::new(),
            ring_bytes: Options::RING_BYTES,
            table_entries: None,
            thread_entries: None,
            tier: Some(tier),
            work: Some(Work::default()),
            objects: true,
            tensors: Tensors::Full,
            stacks: Stacks::Full,
            stack_ring_bytes: Options::STACK_RING_BYTES,
            logs: Options::LOGS.into(),
            empty_probes: false,
        };
        if let Err(error) = Session::start(&options) {
            panic!("{tier}: {error}\n{}", capture::session::last_messages().join("\n"));
        }
    }
}
