//! Malformed programs and files.

use super::*;
use crate::stacks::native::StackEnd;

fn stopped(test: &str) -> (PausedProgram, NativeUnwinder, UnwoundStack) {
    let program = dir(test).join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let stopped = PausedProgram::run(&program, &[]);
    let mut native = NativeUnwinder::new();
    let whole = stopped.unwind(&mut native);
    assert_eq!(whole.end, StackEnd::Start);
    (stopped, native, whole)
}

#[test]
fn truncated_copy_gives_the_frames_that_it_contains() {
    let (mut stopped, mut native, whole) = stopped("truncated");
    let stack = stopped.stack.clone();
    let needed = usize::try_from(whole.slots.last().unwrap().offset).unwrap() + 8;
    for length in 0..=needed {
        stopped.stack.truncate(0);
        stopped.stack.extend_from_slice(&stack[..length]);
        let short = stopped.unwind(&mut native);
        assert!(whole.codes.starts_with(&short.codes), "{length}");
        assert!(whole.slots.starts_with(&short.slots), "{length}");
        let held = whole.slots.iter().filter(|slot| slot.offset + 8 <= length as u64).count();
        // Saved registers can only be above the return address of an inner frame.
        assert_eq!(short.codes.len(), held + 1, "{length}");
        let end = if length == needed { StackEnd::Start } else { StackEnd::CopyTooShort };
        assert_eq!(short.end, end, "{length}");
    }
    // Truncated copies do not affect later results.
    stopped.stack = stack;
    assert_eq!(stopped.unwind(&mut native), whole);
}

#[test]
fn random_stacks_and_registers_are_handled() {
    let (mut stopped, mut native, whole) = stopped("any");
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (stack, registers) = (stopped.stack.clone(), stopped.registers);
    for round in 0..3000 {
        stopped.stack.clone_from(&stack);
        stopped.registers = registers;
        for _ in 0..4 {
            let at = usize::try_from(random()).unwrap() % (stack.len().min(2048) - 8);
            let value = match random() % 4 {
                0 => random(),
                1 => registers.sp.wrapping_add(random() % 4096),
                2 => registers.ip.wrapping_add(random() % 4096),
                _ => u64::MAX - random() % 16,
            };
            stopped.stack[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        match round % 5 {
            0 => stopped.registers.bp = random(),
            1 => stopped.registers.ip = registers.ip.wrapping_add(random() % 8192),
            2 => stopped.registers.sp = u64::MAX - random() % 64,
            3 => stopped.registers.ip = [0, 1, u64::MAX][usize::try_from(random() % 3).unwrap()],
            _ => {}
        }
        let hijacked = [HijackedReturn { at: random(), address: random() }];
        let unwound = stopped.unwind_with(&mut native, &hijacked);
        assert!(!unwound.codes.is_empty() || stopped.registers.ip == 0);
        assert!(unwound.codes.len() <= 128);
    }
    (stopped.stack, stopped.registers) = (stack, registers);
    assert_eq!(stopped.unwind(&mut native), whole);
}

#[test]
fn nonexistent_process_is_gone() {
    let mut native = NativeUnwinder::new();
    let registers = Registers { ip: 0x1000, sp: 0x2000, bp: 0 };
    let unwound = native.unwind(Pid(u32::MAX - 1), registers, &[0; 64], &[]);
    assert_eq!(
        (unwound.codes, unwound.end),
        (vec![FrameLocation::Unmapped(0x1000)], StackEnd::Gone)
    );
    let resolved = native.resolve_addresses(Pid(u32::MAX - 1), &[0x1000], &[]);
    assert_eq!(
        (resolved.codes, resolved.end),
        (vec![FrameLocation::Unmapped(0x1000)], StackEnd::Gone)
    );
}

#[test]
fn file_truncated_while_mapped_does_not_crash() {
    let (stopped, mut native, whole) = stopped("shrinks");
    let path = native.path(match whole.codes[0] {
        FrameLocation::File { module, .. } => module,
        other => panic!("{other:?}"),
    });
    // The file of a running program cannot be written, so it must exit first. Our mapping stays.
    let (registers, stack, pid) = (stopped.registers, stopped.stack.clone(), stopped.pid());
    drop(stopped);
    fs::File::options().write(true).open(&*path).unwrap().set_len(0).unwrap();
    let known = native.unwind(pid, registers, &stack, &[]);
    assert_eq!(known.codes, whole.codes);
    // Symbols come from the file, which is empty now.
    let names = functions(&frames(&native, &whole.codes));
    assert!(names[0] == "Unreadable" || names[0] == "Stripped", "{names:?}");
}

#[test]
fn files_with_random_bytes_changed_are_handled() {
    let dir = dir("bytes");
    let program = dir.join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let whole = fs::read(&program).unwrap();
    let mut state = crate::random::seed();
    for round in 0..60_u32 {
        let mut bytes = whole.clone();
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
    let mut native = NativeUnwinder::new();
    let pid = Pid(std::process::id());
    let mut symbols = NativeSymbolizer::new(native.registry());
    for offset in (0..map.len() as u64).step_by(97) {
        let ip = start + offset + 1;
        let stack: Vec<u8> = (0..64).flat_map(|word| (ip + word).to_le_bytes()).collect();
        let registers = Registers { ip, sp: 0x1000, bp: 0x1040 };
        let unwound = native.unwind(pid, registers, &stack, &[]);
        for code in unwound.codes.iter().take(2) {
            assert!(!symbols.frames(code, true).is_empty());
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
    let stopped = PausedProgram::run(&bomb, &[]);
    let mut native = NativeUnwinder::new();
    let unwound = stopped.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    let names = functions(&frames(&native, &unwound.codes));
    assert_eq!(names[0], "Unreadable");
}

/// Types that move between threads are `Send`; this does not compile otherwise.
const fn can_be_sent<T: Send>() {}
const _: () = can_be_sent::<NativeUnwinder>();
const _: () = can_be_sent::<UnwoundStack>();
const _: () = can_be_sent::<crate::stacks::native::ModuleRegistry>();
