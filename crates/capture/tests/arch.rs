//! Processors that the build supports.
#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../build/arch.rs"]
mod arch;

#[test]
fn other_processors_are_rejected_with_a_remedy() {
    let x86 = arch::supported("x86_64").unwrap();
    assert_eq!((x86.define, x86.triplet), ("-D__TARGET_ARCH_x86", "x86_64-linux-gnu"));
    for other in ["aarch64", "powerpc64", "riscv64"] {
        let message = arch::supported(other).unwrap_err();
        assert!(message.contains(other) && message.contains("--no-default-features"), "{message}");
    }
}
