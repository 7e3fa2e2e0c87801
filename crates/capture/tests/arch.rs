//! Processors that the build supports.

#[path = "../build/arch.rs"]
mod build;

#[test]
fn other_processors_are_rejected_with_a_remedy() {
    let x86 = build::supported("x86_64").unwrap();
    assert_eq!((x86.define, x86.triplet), ("-D__TARGET_ARCH_x86", "x86_64-linux-gnu"));
    for other in ["aarch64", "powerpc64", "riscv64"] {
        let message = build::supported(other).unwrap_err();
        assert!(message.contains(other) && message.contains("--no-default-features"), "{message}");
    }
}
