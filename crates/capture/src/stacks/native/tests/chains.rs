//! Unwinding of programs that were compiled with different options.

use super::*;
use crate::stacks::native::StackEnd;

const CHAIN: [&str; 8] =
    ["leaf", "merged", "middle", "growing", "aligned", "rearranged", "outer", "main"];

fn assert_chain(test: &str, options: &[&str]) {
    let program = dir(test).join("chain");
    compile("chain.c", &program, options);
    let paused = PausedProgram::run(&program, &[]);
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start, "{unwound:?}");
    let frames = frames(&native, &unwound.locations);
    let names = functions(&frames);
    assert_eq!(names[..CHAIN.len()], CHAIN, "{names:?}");
    assert_eq!(names.last().unwrap(), "_start");
    for (frame, name) in frames.iter().zip(CHAIN) {
        assert_eq!(frame.line, line("chain.c", &format!("@{name}")), "{name}");
        assert!(frame.file.as_deref().unwrap().ends_with("fixtures/chain.c"));
        assert_eq!(frame.module.as_deref(), program.to_str());
    }
    assert_slots(&paused, &unwound);
}

/// Checks that each frame but the first has its return address in its slot.
fn assert_slots(paused: &PausedProgram, unwound: &UnwoundStack) {
    assert_eq!(unwound.slots.len() + 1, unwound.locations.len());
    let mut before = None;
    for slot in &unwound.slots {
        let at = usize::try_from(slot.offset).unwrap();
        let bytes: [u8; 8] = paused.stack[at..at + 8].try_into().unwrap();
        assert_eq!(u64::from_le_bytes(bytes), slot.value);
        assert!(before < Some(slot.offset));
        before = Some(slot.offset);
    }
}

#[test]
fn code_without_frame_pointers_is_unwound() {
    assert_chain("optimized", &["-g", "-O2"]);
}

#[test]
fn unoptimized_code_is_unwound() {
    assert_chain("plain", &["-g", "-O0"]);
}

#[test]
fn code_with_frame_pointers_is_unwound() {
    assert_chain("pointers", &["-g", "-O2", "-fno-omit-frame-pointer"]);
}

#[test]
fn program_at_fixed_address_is_unwound() {
    assert_chain("fixed", &["-g", "-O2", "-no-pie", "-fno-pie"]);
}

#[test]
fn static_program_is_unwound() {
    assert_chain("static", &["-g", "-O2", "-static"]);
}

#[test]
fn compressed_debug_information_is_read() {
    assert_chain("compressed", &["-g", "-O2", "-gz=zlib"]);
}

#[test]
fn code_without_unwind_tables_is_unwound_by_frame_pointers() {
    let tables = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions"];
    assert_chain("no-tables", &[&["-g", "-O2", "-fno-omit-frame-pointer"], &tables[..]].concat());
}

#[test]
fn thread_stack_ends_at_its_start_function() {
    let program = dir("thread").join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let paused = PausedProgram::run(&program, &["thread"]);
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    let names = functions(&frames(&native, &unwound.locations));
    assert_eq!(names[..7], CHAIN[..7]);
    assert_eq!(names[7], "thread");
    assert!(!names.contains(&"main".to_owned()));
}

#[test]
fn deep_stack_is_truncated() {
    let program = dir("deep").join("chain");
    compile("chain.c", &program, &["-g", "-O1", "-fno-optimize-sibling-calls"]);
    let paused = PausedProgram::run(&program, &["deep", "1000"]);
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!((unwound.locations.len(), unwound.end), (128, StackEnd::TooDeep));
    let frames = frames(&native, &unwound.locations);
    assert_eq!(functions(&frames).last().unwrap(), "again");
}

#[test]
fn addresses_of_a_walk_are_resolved() {
    let program = dir("resolve").join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let paused = PausedProgram::run(&program, &[]);
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    let rest = unwound.slots.iter().map(|slot| slot.value);
    let addresses: Vec<u64> = [paused.registers.ip].into_iter().chain(rest).collect();
    let resolved = native.resolve_addresses(paused.pid(), &addresses, &[]);
    assert_eq!((&resolved.locations, resolved.end), (&unwound.locations, StackEnd::Start));
    assert!(resolved.slots.is_empty());
    let invalid = native.resolve_addresses(paused.pid(), &[addresses[0], 0x10, addresses[1]], &[]);
    assert_eq!(
        (invalid.locations, invalid.end),
        (unwound.locations[..1].to_vec(), StackEnd::NoRule)
    );
}
