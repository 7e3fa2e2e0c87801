//! Processors that the build supports.

#[path = "../build/arch.rs"]
mod build;

#[test]
fn other_processors_are_rejected_with_a_remedy() {
    assert_eq!(build::define("x86_64").unwrap(), "-D__TARGET_ARCH_x86");
    assert_eq!(build::define("aarch64").unwrap(), "-D__TARGET_ARCH_arm64");
    for other in ["powerpc64", "riscv64"] {
        let message = build::define(other).unwrap_err();
        assert!(message.contains(other) && message.contains("recordings"), "{message}");
    }
}
