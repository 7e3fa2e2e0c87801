//! Cost of unwinding a stack. Run with `--nocapture` to see the numbers.

use super::*;
use std::time::{Duration, Instant};

#[test]
fn cached_unwind_takes_microseconds() {
    let program = dir("speed").join("chain");
    compile("chain.c", &program, &["-g", "-O2", "-fno-optimize-sibling-calls"]);
    let paused = PausedProgram::run(&program, &["deep", "22"]);
    let mut native = TestUnwinder::default();
    let start = Instant::now();
    let cold = paused.unwind(&mut native);
    let first = start.elapsed();
    native.process_exited(paused.pid());
    let start = Instant::now();
    assert_eq!(paused.unwind(&mut native), cold);
    let again = start.elapsed();
    let rounds = 20_000;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..rounds {
            assert_eq!(paused.unwind(&mut native).locations.len(), cold.locations.len());
        }
        fastest = fastest.min(start.elapsed() / rounds);
    }
    let mut symbols = NativeSymbolizer::new(native.registry());
    let generated = GeneratedCode::new(paused.pid());
    let start = Instant::now();
    let named: usize =
        cold.locations.iter().map(|code| symbols.frames(code, true, &generated).len()).sum();
    let names = start.elapsed();
    println!(
        "{} frames: first {first:?}, in a new process {again:?}, then {fastest:?}; {named} names {names:?}",
        cold.locations.len()
    );
    assert!(fastest < Duration::from_micros(100), "{fastest:?}");
}
