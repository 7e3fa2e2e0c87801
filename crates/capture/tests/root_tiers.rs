//! Every way to attach, tried on this kernel.

use capture::plan::Tier;

#[test]
fn every_tier_works_on_a_new_kernel() {
    let host = capture::session::examine();
    assert!(host.rights.bpf, "these tests need root");
    assert_eq!(host.tiers.len(), Tier::ALL.len());
    for (tier, outcome) in &host.tiers {
        // Older kernels lack the best ones; the plain ones must always work.
        if host.kernel >= (6, 13) || *tier >= Tier::Single {
            assert_eq!(
                outcome,
                &Ok(()),
                "{tier}\n{}",
                capture::session::last_messages().join("\n")
            );
        }
    }
}
