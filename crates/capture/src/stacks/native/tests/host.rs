//! Effects of the kernel on programs: vDSO, return probes, mount namespaces. Needs root.

use super::*;
use crate::stacks::native::StackEnd;
use object::{Object, ObjectSymbol};
use perf_event_open_sys as perf;
use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Attaches a return probe to a function of a program, as another tracer could.
fn probe(program: &Path, function: &str) -> OwnedFd {
    let bytes = fs::read(program).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let symbol = elf.symbols().find(|symbol| symbol.name() == Ok(function)).unwrap();
    let (start, address) = elf
        .segments()
        .find_map(|segment| {
            use object::ObjectSegment;
            let range = segment.address()..segment.address() + segment.size();
            range.contains(&symbol.address()).then(|| (segment.file_range().0, segment.address()))
        })
        .unwrap();
    let kind = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").unwrap();
    let path = CString::new(program.as_os_str().as_bytes()).unwrap();
    let mut attr = perf::bindings::perf_event_attr {
        type_: kind.trim().parse().unwrap(),
        size: u32::try_from(size_of::<perf::bindings::perf_event_attr>()).unwrap(),
        // At the return.
        config: 1,
        ..Default::default()
    };
    attr.__bindgen_anon_3.config1 = path.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = symbol.address() - address + start;
    // SAFETY: attr is valid and of the size it states, and the path outlives the call.
    let event = unsafe { perf::perf_event_open(&raw mut attr, -1, 0, -1, 0) };
    assert!(event >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call returned a new descriptor.
    unsafe { OwnedFd::from_raw_fd(event) }
}

#[test]
fn hijacked_return_addresses_are_restored() {
    let program = dir("probed").join("chain");
    compile("chain.c", &program, &["-g", "-O2", "-no-pie", "-fno-pie"]);
    let mut native = TestUnwinder::default();
    let untouched = PausedProgram::run(&program, &[]).unwind(&mut native);
    let _probes = [probe(&program, "middle"), probe(&program, "outer")];
    let paused = PausedProgram::run(&program, &[]);

    // Without the original addresses these frames are lost. `growing` has a frame pointer, so its
    // caller is still found; `main` has none.
    let hidden = paused.unwind(&mut native);
    let lost: Vec<_> = (0..hidden.locations.len())
        .filter(|&at| hidden.locations[at] != untouched.locations[at])
        .collect();
    assert_eq!(lost, [2, 6], "{hidden:?}");
    assert!(lost.iter().all(|&at| matches!(hidden.locations[at], FrameLocation::Probe(_))));
    assert_eq!(hidden.locations.len(), 7);
    assert_ne!(hidden.end, StackEnd::Start);
    assert_eq!(functions(&frames(&native, &hidden.locations)).last().unwrap(), "HiddenByUretprobe");

    // The program is at a fixed address, so the addresses are those of the first run. The slots are
    // not, because the alignment of the stack differs.
    let hijacked = |at: usize| HijackedReturn {
        at: paused.registers.sp + hidden.slots[at - 1].offset,
        address: untouched.slots[at - 1].value,
    };
    let (middle, outer) = (hijacked(2), hijacked(6));
    let by_slot = [outer, middle];
    let patched = paused.unwind_with(&mut native, &by_slot);
    assert_eq!((&patched.locations, patched.end), (&untouched.locations, StackEnd::Start));
    // The slots contain the address of the probe.
    assert_ne!(patched.slots, untouched.slots);

    // Without slots, in order.
    let in_order = [middle, outer].map(|hijacked| HijackedReturn { at: 0, ..hijacked });
    assert_eq!(paused.unwind_with(&mut native, &in_order), patched);
    let addresses: Vec<u64> = [paused.registers.ip]
        .into_iter()
        .chain(patched.slots.iter().map(|slot| slot.value))
        .collect();
    let resolved = native.resolve_addresses(paused.pid(), &addresses, &in_order);
    assert_eq!((&resolved.locations, resolved.end), (&patched.locations, StackEnd::Start));

    // The mappings were read before the first probe, and cannot be read again.
    native.spaces.get_mut(&paused.pid()).unwrap().forget_probes();
    assert_eq!(paused.unwind_with(&mut native, &by_slot), patched);
}

#[test]
fn vdso_functions_have_names() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    let hex = |word| u64::from_str_radix(word, 16).unwrap();
    let mut bytes = vec![0; usize::try_from(hex(end) - hex(start)).unwrap()];
    let memory = fs::File::open("/proc/self/mem").unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, hex(start)).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let name = "__vdso_clock_gettime";
    let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();

    let mut native = TestUnwinder::default();
    let address = hex(start) + symbol.address() + 1;
    let resolved = native.resolve_addresses(Pid(std::process::id()), &[address], &[]);
    let frames = frames(&native, &resolved.locations);
    // One of the names of the function.
    assert!(frames[0].function.ends_with("clock_gettime"), "{frames:?}");
    assert_eq!(frames[0].module.as_deref(), Some("[vdso]"));
}

#[test]
fn program_in_other_mount_namespace_is_read() {
    let dir = dir("mounts");
    let program = dir.join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let inside = dir.join("inside");
    fs::create_dir(&inside).unwrap();
    let script = "mount -t tmpfs none \"$2\" && cp \"$1\" \"$2\" && exec \"$2/chain\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).args([&program, &inside]);
    let paused = PausedProgram::start(&mut command);
    assert!(!inside.join("chain").exists());
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    let frames = frames(&native, &unwound.locations);
    assert_eq!(functions(&frames)[..2], ["leaf", "merged"]);
    assert_eq!(frames[0].module.as_deref(), inside.join("chain").to_str());
}

#[test]
fn call_from_python_through_libffi_is_unwound() {
    let library = dir("python").join("libnames.so");
    compile("names.cc", &library, &["-shared", "-fPIC", "-O2", "-g"]);
    let script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).exported(1)";
    let mut command = Command::new("python3");
    let paused = PausedProgram::start(command.args(["-c", script]).arg(&library));
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    let frames = frames(&native, &unwound.locations);
    let module = |frame: &Frame| frame.module.as_deref().unwrap().to_owned();
    assert_eq!(functions(&frames)[3], "exported");
    assert!(module(&frames[4]).contains("libffi"), "{frames:?}");
    assert!(frames.iter().any(|frame| module(frame).contains("_ctypes")));
    assert!(module(frames.last().unwrap()).contains("python"));
    // Copies that end in the frame of libffi, whose rule framehop cannot cache.
    let ffi = usize::try_from(unwound.slots[3].offset).unwrap();
    for length in ffi..ffi + 256 {
        let short = native.unwind(paused.pid(), paused.registers, &paused.stack[..length], &[]);
        assert!(unwound.locations.starts_with(&short.locations));
    }
    assert_eq!(paused.unwind(&mut native), unwound);
}

/// Resolves an address until it is in this file.
fn wait_for(native: &mut TestUnwinder, address: u64, changed: bool, path: &Path) {
    let own_pid = Pid(std::process::id());
    let start = std::time::Instant::now();
    loop {
        if changed {
            native.mapping_changed(own_pid);
        }
        let resolved = native.resolve_addresses(own_pid, &[address], &[]);
        let found = match resolved.locations[0] {
            FrameLocation::File { module, .. } => native.path(module),
            _ => "".into(),
        };
        if *found == *path.to_str().unwrap() {
            return;
        }
        assert!(start.elapsed().as_secs() < 20, "{resolved:?}");
        std::thread::yield_now();
    }
}

#[test]
fn later_mappings_are_found() {
    let dir = dir("later");
    let (first, second) = (dir.join("first.so"), dir.join("second.so"));
    for (library, level) in [(&first, "-O1"), (&second, "-O2")] {
        compile("names.cc", library, &["-shared", "-fPIC", level]);
    }
    let mut native = TestUnwinder::default();
    let resolved = native.resolve_addresses(Pid(std::process::id()), &[1], &[]);
    assert_eq!(resolved.locations, [FrameLocation::Unmapped(1)]);
    let file = fs::File::open(&first).unwrap();
    // SAFETY: nothing runs the mapping or changes the file.
    let map = unsafe { memmap2::MmapOptions::new().map_exec(&file) }.unwrap();
    let address = map.as_ptr() as u64 + 0x1100;
    wait_for(&mut native, address, false, &first);
    // Another file at the same address: without an event a known address is not checked again.
    let file = fs::File::open(&second).unwrap();
    let (flags, access) = (libc::MAP_PRIVATE | libc::MAP_FIXED, libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: replaces our own mapping, which is no longer read.
    let mapped = unsafe {
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        libc::mmap(map.as_ptr() as *mut _, map.len(), access, flags, descriptor, 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    wait_for(&mut native, address, true, &second);
}
