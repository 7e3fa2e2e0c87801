//! Kernel names: demangling of real ones, and robustness against any text.

use formats::kernel_name::KernelName;
use proptest::prelude::*;

use crate::random;

const SYMBOLS: &str = include_str!("kernels/symbols.txt");
const FULL: &str = include_str!("kernels/full.txt");
const SHORT: &str = include_str!("kernels/short.txt");

/// Normalizes spelling: c++filt writes `3ul` for `(unsigned long)3`, `> >` for `>>`, no return type
/// of functions that contain a lambda, and `const` after lambdas instead of inside.
fn spelled_alike(name: &str) -> String {
    let mut text =
        name.replace("void ", "").replace(" const", "").replace("> >", ">>").replace("> >", ">>");
    for (cast, suffix) in [("(unsigned long)", "ul"), ("(unsigned int)", "u"), ("(long)", "l")] {
        while let Some(start) = text.find(cast) {
            let digits = start + cast.len();
            let length = text[digits..].find(|c: char| !c.is_ascii_digit()).unwrap();
            assert!(length > 0, "unexpected cast in {name}");
            text.insert_str(digits + length, suffix);
            text.replace_range(start..digits, "");
        }
    }
    text
}

#[test]
fn full_names_match_another_demangler() {
    let symbols: Vec<&str> = SYMBOLS.lines().collect();
    assert!(symbols.len() > 30 && symbols.len() == FULL.lines().count());
    for (symbol, full) in symbols.iter().zip(FULL.lines()) {
        let ours = KernelName::of(symbol).full;
        assert_eq!(spelled_alike(&ours), spelled_alike(full), "{symbol}");
    }
}

#[test]
fn short_names_match_the_reviewed_list() {
    assert_eq!(SYMBOLS.lines().count(), SHORT.lines().count());
    for (symbol, short) in SYMBOLS.lines().zip(SHORT.lines()) {
        assert_eq!(KernelName::of(symbol).short, short, "{symbol}");
    }
}

#[test]
fn demangled_names_are_shortened() {
    for (full, symbol) in FULL.lines().zip(SYMBOLS.lines()) {
        let name = KernelName::of(full);
        assert_eq!((name.full.as_str(), &name.short), (full, &KernelName::of(symbol).short));
    }
    for (full, short) in [
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<\
             flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1> > > > > >(flash::Params)",
            "cutlass::device_kernel<FlashAttnFwdSm90, …>",
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 32, 4, false, \
             false, cutlass::half_t>, false, true>(pytorch_flash::Flash_fwd_params)",
            "pytorch_flash::flash_fwd_kernel<…>",
        ),
        ("void foo<((4)>(2)), a>(int)", "foo<…>"),
        ("bool ns::Less::operator()<float>(float, float) const", "ns::Less::operator()<…>"),
        ("ns::operator<<(int)", "ns::operator<<"),
        ("ns::Vector::operator bool(int)", "ns::Vector::operator bool"),
        ("void main::{lambda(float)#1}::run<int>(int)", "main::{lambda}::run<…>"),
        ("(anonymous namespace)::kernel(float*)", "kernel"),
        ("void (anonymous namespace)::kernel(float*)", "kernel"),
    ] {
        assert_eq!(KernelName::of(full).short, short, "{full}");
    }
}

#[test]
fn unmangled_names_are_unchanged() {
    for name in [
        "triton_poi_fused_add_0",
        "triton_red_fused__softmax_backward_data_div_mm_21",
        "add_kernel",
        "_attn_fwd",
        "loop_add_fusion_3",
        "input_reduce_fusion",
        "gemm_fusion_dot_12",
        "cupy_add__float32_float32_float32",
        "cupyx_scatter_add",
        "ampere_sgemm_128x64_nn",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "nvjet_tst_128x64_64x8_1x2_v_bz_TNN",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x96x64_stage4_warpsize2x2x1_tensor16x8x16_kernel",
        "Memcpy DtoD (Device -> Device)",
        "_Z",
        "_ZN2at6native29vectorized_elementwise_kernelILi4E",
        "_R",
        "(",
        "",
    ] {
        let name_of = KernelName::of(name);
        assert_eq!((name_of.short.as_str(), name_of.full.as_str()), (name, name));
    }
}

#[test]
fn rust_names_lose_their_hash() {
    for (symbol, full, short) in [
        ("_ZN7kernels3add17h05af221e174051e9E", "kernels::add", "kernels::add"),
        ("_RNvC7kernels3add", "kernels::add", "kernels::add"),
        ("_RINvC7kernels3addfE", "kernels::add::<f32>", "kernels::add::<…>"),
    ] {
        let name = KernelName::of(symbol);
        assert_eq!((name.full.as_str(), name.short.as_str()), (full, short));
    }
}

/// Returns a function whose parameter types each contain the previous one twice.
fn doubling(levels: usize) -> String {
    let mut symbol = "_Z1f1PI1aS0_E".to_owned();
    for level in 1..levels {
        let digit = std::char::from_digit(u32::try_from(level).unwrap(), 36).unwrap();
        let digit = digit.to_ascii_uppercase();
        symbol.push_str(&format!("S_IS{digit}_S{digit}_E"));
    }
    symbol
}

#[test]
fn exponentially_long_names_are_unchanged() {
    let one = "P<a, a>";
    let two = format!("P<{one}, {one} >");
    let three = format!("P<{two}, {two} >");
    assert_eq!(KernelName::of(&doubling(3)).full, format!("f({one}, {two}, {three})"));
    let many = doubling(35);
    assert_eq!(KernelName::of(&many), KernelName { short: many.clone(), full: many });
}

#[test]
fn too_deep_or_long_names_are_unchanged() {
    let deep = |middle: &str, count: usize| format!("_Z1f{}i", middle.repeat(count));
    for symbol in [
        deep("P", 20_000),
        deep("1AI", 10_000),
        deep("N", 20_000),
        format!("_Z1f{}", "i".repeat(70_000)),
        format!("void f{}", "(<".repeat(30_000)),
        "x".repeat(1 << 20),
    ] {
        let name = KernelName::of(&symbol);
        assert_eq!(name.full.len(), symbol.len());
        assert!(name.short.len() <= symbol.len());
    }
    assert_eq!(KernelName::of(&deep("P", 20)).full, format!("f(int{})", "*".repeat(20)));
}

/// Pieces of mangled and demangled names.
fn piece() -> impl Strategy<Value = String> {
    let known = [
        "Memcpy DtoD (Device -> Device)",
        "_Z",
        "_ZN",
        "_R",
        "N",
        "I",
        "E",
        "S_",
        "S0_",
        "T_",
        "Li4E",
        "3foo",
        "5array",
        "Z",
        "Ul",
        "vE_",
        "J",
        "Dp",
        "P",
        "K",
        "v",
        "i",
        "f",
        "17h05af221e174051e9E",
        "::",
        "<",
        ">",
        "(",
        ")",
        "{lambda",
        "}",
        "[abi:",
        "]",
        ",",
        " ",
        "operator",
        "(anonymous namespace)",
        "void ",
        "BinaryFunctor<",
        "reduce_kernel<",
        "\u{1b}[31m",
        "…",
        "\0",
    ];
    prop_oneof![9 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,4}"]
}

proptest! {
    #![proptest_config(random::config(random::CASES))]

    #[test]
    fn any_text_has_a_bounded_name(pieces in proptest::collection::vec(piece(), 0..60)) {
        let symbol = pieces.concat();
        let name = KernelName::of(&symbol);
        prop_assert!(name.full.len() <= symbol.len().max(256 << 10));
        // `<>` becomes `<…>`; nothing else grows.
        prop_assert!(name.short.len() <= name.full.len() * 5 / 2 + 8);
    }

    #[test]
    fn damaged_names_do_not_panic(
        line in 0..SYMBOLS.lines().count(), offset in 0_usize..400, byte in "[ -~]{0,3}",
    ) {
        let mut symbol = SYMBOLS.lines().nth(line).unwrap().to_owned();
        let offset = offset % symbol.len();
        symbol.replace_range(offset..=offset, &byte);
        let name = KernelName::of(&symbol);
        prop_assert!(!name.short.is_empty() && name.full.len() <= 256 << 10);
    }
}
