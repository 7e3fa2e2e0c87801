//! Tries every attach mode on this kernel.

use capture::plan::AttachMode;
use capture::session::{ActivityOptions, Session, SessionOptions, StackMode, Target, TensorMode};

#[test]
fn every_attach_mode_works_on_a_new_kernel() {
    let host = capture::session::probe_host();
    assert!(host.capabilities.bpf, "these tests need root");
    assert_eq!(host.attach_modes.len(), AttachMode::ALL.len());
    for (attach_mode, outcome) in &host.attach_modes {
        // Older kernels lack the best modes; the single modes must always work.
        if host.kernel >= (6, 13) || *attach_mode >= AttachMode::Single {
            assert_eq!(
                outcome,
                &Ok(()),
                "{attach_mode}\n{}",
                capture::session::recent().join("\n")
            );
        }
    }
    let works = |attach_mode: &AttachMode| host.attach_modes.contains(&(*attach_mode, Ok(())));
    start_with_all_options(AttachMode::ALL.into_iter().filter(works));
}

/// Starts a session in each mode with all options. Not at the same time as the self-test, which
/// counts every hit of this process.
fn start_with_all_options(attach_modes: impl Iterator<Item = AttachMode>) {
    for attach_mode in attach_modes {
        let options = SessionOptions {
            target: Target::All,
            drivers: Vec::new(),
            ring_bytes: SessionOptions::RING_BYTES,
            table_entries: None,
            thread_entries: None,
            attach_mode: Some(attach_mode),
            activity: Some(ActivityOptions::default()),
            objects: true,
            tensors: TensorMode::Full,
            stacks: StackMode::Full,
            stack_ring_bytes: SessionOptions::STACK_RING_BYTES,
            logs: SessionOptions::DEFAULT_LOG_DIR.into(),
            empty_probes: false,
        };
        if let Err(error) = Session::start(&options) {
            panic!("{attach_mode}: {error}\n{}", capture::session::recent().join("\n"));
        }
    }
}
