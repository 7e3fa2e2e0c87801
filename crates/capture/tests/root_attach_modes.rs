//! Tries every attach mode on this kernel.

use capture::plan::AttachMode;
use capture::session::{
    ActivityOptions, AllocatorMode, Session, SessionOptions, StackMode, Target,
};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};

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
            allocators: AllocatorMode::Full,
            stacks: StackMode::Full,
            stack_ring_bytes: SessionOptions::STACK_RING_BYTES,
            logs: SessionOptions::DEFAULT_LOG_DIR.into(),
            empty_probes: false,
        };
        let session = Session::start(&options).unwrap_or_else(|error| {
            panic!("{attach_mode}: {error}\n{}", capture::session::recent().join("\n"))
        });
        assert_verified_instructions();
        #[cfg(target_arch = "x86_64")]
        assert_stack_of_thread();
        drop(session);
    }
}

/// Instructions that the verifier of Linux 6.18 processes for each program, in thousands, rounded up.
/// The limit of the kernel is a million, and older kernels process more of them.
const VERIFIED_THOUSANDS: [(&str, u32); 13] = [
    ("call_session", 61),
    ("call_multi_enter", 9),
    ("call_multi_return", 60),
    ("call_single_enter", 9),
    ("call_single_return", 60),
    ("launch_session", 7),
    ("launch_multi", 6),
    ("launch_single", 6),
    ("block_multi", 20),
    ("block_single", 20),
    ("process_fork", 1),
    ("process_exec", 1),
    ("process_exit", 9),
];

/// Asserts that no loaded program takes a quarter more than the baseline. Names in the kernel have at
/// most 15 characters.
fn assert_verified_instructions() {
    let mut checked = 0;
    for program in ProgInfoIter::default() {
        let name = program.name.to_string_lossy();
        let is_it = |(full, _): &&(&str, u32)| full[..full.len().min(15)] == name;
        let Some((name, thousands)) = VERIFIED_THOUSANDS.iter().find(is_it) else { continue };
        let verified = program.verified_insns;
        assert!(verified <= thousands * 1250, "{name}: {verified} instructions");
        checked += 1;
    }
    assert!(checked > 3, "no programs found");
}

/// Asserts that no loaded probe keeps variables in memory of the CPU, where another thread that runs the
/// same probe overwrites them. Linux 6.18 finds that memory with this instruction.
#[cfg(target_arch = "x86_64")]
fn assert_stack_of_thread() {
    const ADD_OFFSET_OF_CPU_TO_R9: [u8; 5] = [0x65, 0x4c, 0x03, 0x0c, 0x25];
    let options = ProgInfoQueryOptions::default().include_jited_prog_insns(true);
    let mut checked = 0;
    for program in ProgInfoIter::with_query_opts(options) {
        let name = program.name.to_string_lossy();
        let is_ours = ["call_", "launch_", "block_"].iter().any(|prefix| name.starts_with(prefix));
        if is_ours && !program.jited_prog_insns.is_empty() {
            let code = program.jited_prog_insns.windows(ADD_OFFSET_OF_CPU_TO_R9.len());
            let uses = code.filter(|bytes| *bytes == ADD_OFFSET_OF_CPU_TO_R9).count();
            assert_eq!(uses, 0, "{name}");
            checked += 1;
        }
    }
    assert!(checked > 1, "no programs found");
}
