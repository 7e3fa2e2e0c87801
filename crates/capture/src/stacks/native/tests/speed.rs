//! What a stack costs. Run with `--nocapture` to see the figures.

use super::*;
use std::time::{Duration, Instant};

#[test]
fn a_stack_that_is_known_costs_microseconds() {
    let program = folder("speed").join("chain");
    compile("chain.c", &program, &["-g", "-O2", "-fno-optimize-sibling-calls"]);
    let stopped = Stopped::run(&program, &["deep", "22"]);
    let mut native = Native::new();
    let began = Instant::now();
    let cold = stopped.unwind(&mut native);
    let first = began.elapsed();
    native.forget(stopped.pid());
    let began = Instant::now();
    assert_eq!(stopped.unwind(&mut native), cold);
    let again = began.elapsed();
    let rounds = 20_000;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        for _ in 0..rounds {
            assert_eq!(stopped.unwind(&mut native).codes.len(), cold.codes.len());
        }
        fastest = fastest.min(began.elapsed() / rounds);
    }
    let mut symbols = Symbols::new(native.registry());
    let began = Instant::now();
    let named: usize = cold.codes.iter().map(|code| symbols.frames(code, true).len()).sum();
    let names = began.elapsed();
    println!(
        "{} frames: first {first:?}, in a new process {again:?}, then {fastest:?}; {named} names {names:?}",
        cold.codes.len()
    );
    assert!(fastest < Duration::from_micros(100), "{fastest:?}");
}
