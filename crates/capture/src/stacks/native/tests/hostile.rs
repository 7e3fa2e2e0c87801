//! Malformed programs and files.

use super::*;
use crate::stacks::native::StackEnd;

fn paused(test: &str) -> (PausedProgram, TestUnwinder, UnwoundStack) {
    let program = dir(test).join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let paused = PausedProgram::run(&program, &[]);
    let mut native = TestUnwinder::default();
    let full = paused.unwind(&mut native);
    assert_eq!(full.end, StackEnd::Start);
    (paused, native, full)
}

#[test]
fn truncated_copy_gives_the_frames_that_it_contains() {
    let (mut paused, mut native, full) = paused("truncated");
    let stack = paused.stack.clone();
    let needed = usize::try_from(full.slots.last().unwrap().offset).unwrap() + 8;
    for length in 0..=needed {
        paused.stack.truncate(0);
        paused.stack.extend_from_slice(&stack[..length]);
        let short = paused.unwind(&mut native);
        assert!(full.locations.starts_with(&short.locations), "{length}");
        assert!(full.slots.starts_with(&short.slots), "{length}");
        let complete = full.slots.iter().filter(|slot| slot.offset + 8 <= length as u64).count();
        // Saved registers can only be above the return address of an inner frame.
        assert_eq!(short.locations.len(), complete + 1, "{length}");
        let end = if length == needed { StackEnd::Start } else { StackEnd::CopyTooShort };
        assert_eq!(short.end, end, "{length}");
    }
    // Truncated copies do not affect later results.
    paused.stack = stack;
    assert_eq!(paused.unwind(&mut native), full);
}

#[test]
fn random_stacks_and_registers_are_handled() {
    let (mut paused, mut native, full) = paused("any");
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (stack, registers) = (paused.stack.clone(), paused.registers);
    for round in 0..3000 {
        paused.stack.clone_from(&stack);
        paused.registers = registers;
        for _ in 0..4 {
            let at = usize::try_from(random()).unwrap() % (stack.len().min(2048) - 8);
            let value = match random() % 4 {
                0 => random(),
                1 => registers.sp.wrapping_add(random() % 4096),
                2 => registers.ip.wrapping_add(random() % 4096),
                _ => u64::MAX - random() % 16,
            };
            paused.stack[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        match round % 5 {
            0 => paused.registers.bp = random(),
            1 => paused.registers.ip = registers.ip.wrapping_add(random() % 8192),
            2 => paused.registers.sp = u64::MAX - random() % 64,
            3 => paused.registers.ip = [0, 1, u64::MAX][usize::try_from(random() % 3).unwrap()],
            _ => {}
        }
        let hijacked = [HijackedReturn { at: random(), address: random() }];
        let unwound = paused.unwind_with(&mut native, &hijacked);
        assert!(!unwound.locations.is_empty() || paused.registers.ip == 0);
        assert!(unwound.locations.len() <= 128);
    }
    (paused.stack, paused.registers) = (stack, registers);
    assert_eq!(paused.unwind(&mut native), full);
}

#[test]
fn nonexistent_process_has_exited() {
    let mut native = TestUnwinder::default();
    let registers = Registers { ip: 0x1000, sp: 0x2000, bp: 0 };
    let unwound = native.unwind(Pid(u32::MAX - 1), registers, &[0; 64], &[]);
    assert_eq!(
        (unwound.locations, unwound.end),
        (vec![FrameLocation::Unmapped(0x1000)], StackEnd::ProcessExited)
    );
    let resolved = native.resolve_addresses(Pid(u32::MAX - 1), &[0x1000], &[]);
    assert_eq!(
        (resolved.locations, resolved.end),
        (vec![FrameLocation::Unmapped(0x1000)], StackEnd::ProcessExited)
    );
}

#[test]
fn file_truncated_while_mapped_does_not_crash() {
    let (paused, mut native, full) = paused("shrinks");
    let path = native.path(match full.locations[0] {
        FrameLocation::File { module, .. } => module,
        other => panic!("{other:?}"),
    });
    // The file of a running program cannot be written, so it must exit first. Our mapping stays.
    let (registers, stack, pid) = (paused.registers, paused.stack.clone(), paused.pid());
    drop(paused);
    fs::File::options().write(true).open(&*path).unwrap().set_len(0).unwrap();
    let known = native.unwind(pid, registers, &stack, &[]);
    assert_eq!(known.locations, full.locations);
    // Symbols come from the file, which is empty now.
    let names = functions(&frames(&native, &full.locations));
    assert!(names[0] == "Unreadable" || names[0] == "NoSymbol", "{names:?}");
}

#[test]
fn files_with_random_bytes_changed_are_handled() {
    let dir = dir("bytes");
    let program = dir.join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let original = fs::read(&program).unwrap();
    let mut state = crate::random::seed();
    for round in 0..60_u32 {
        let mut bytes = original.clone();
        for _ in 0..=round * 4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap() % bytes.len();
            bytes[at] ^= u8::try_from(state >> 25 & 0xff).unwrap();
        }
        let file = dir.join(format!("broken-{round}"));
        fs::write(&file, bytes).unwrap();
        unwind_everything(&file);
        fs::remove_file(file).unwrap();
    }
}

/// Maps a file as code into this process, and unwinds and symbolizes it.
fn unwind_everything(path: &Path) {
    let file = fs::File::open(path).unwrap();
    // SAFETY: nothing runs the mapping or changes the file.
    let map = unsafe { memmap2::MmapOptions::new().map_exec(&file) }.unwrap();
    let start = map.as_ptr() as u64;
    let mut native = TestUnwinder::default();
    let pid = Pid(std::process::id());
    let mut symbols = NativeSymbolizer::new(native.registry());
    let generated = GeneratedCode::new(pid);
    for offset in (0..map.len() as u64).step_by(97) {
        let ip = start + offset + 1;
        let stack: Vec<u8> = (0..64).flat_map(|word| (ip + word).to_le_bytes()).collect();
        let registers = Registers { ip, sp: 0x1000, bp: 0x1040 };
        let unwound = native.unwind(pid, registers, &stack, &[]);
        for location in unwound.locations.iter().take(2) {
            assert!(!symbols.frames(location, true, &generated).is_empty());
        }
    }
}

#[test]
fn impossible_uncompressed_size_is_rejected() {
    let dir = dir("bomb");
    let (program, bomb) = (dir.join("chain"), dir.join("bomb"));
    compile("chain.c", &program, &["-g", "-O2", "-gz=zlib"]);
    let mut bytes = fs::read(&program).unwrap();
    // The header of a compressed section: type 1, a zero, and the uncompressed size.
    let header = {
        use object::{Object, ObjectSection};
        let elf = object::File::parse(&*bytes).unwrap();
        let section = elf.section_by_name(".debug_info").unwrap();
        assert!(section.compressed_file_range().unwrap().uncompressed_size > 0);
        usize::try_from(section.file_range().unwrap().0).unwrap()
    };
    assert_eq!(bytes[header..header + 8], [1, 0, 0, 0, 0, 0, 0, 0]);
    bytes[header + 8..header + 16].copy_from_slice(&(1_u64 << 45).to_le_bytes());
    fs::write(&bomb, bytes).unwrap();
    fs::set_permissions(&bomb, fs::metadata(&program).unwrap().permissions()).unwrap();
    let paused = PausedProgram::run(&bomb, &[]);
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    let names = functions(&frames(&native, &unwound.locations));
    assert_eq!(names[0], "Unreadable");
}

/// Types that move between threads are `Send`; this does not compile otherwise.
const fn can_be_sent<T: Send>() {}
const _: () = can_be_sent::<NativeUnwinder>();
const _: () = can_be_sent::<UnwoundStack>();
const _: () = can_be_sent::<crate::stacks::native::ModuleRegistry>();
