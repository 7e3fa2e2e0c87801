//! The oracle of a process, however it ends; processes that share memory and devices.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::common::{
    INVALID_CONTEXT, INVALID_VALUE, Library, MIB, NOT_INITIALIZED, OK, OUT, OUT_OF_MEMORY,
    full_name, isolated, live, oracle_of,
};

#[test]
fn injected_failures_hit_the_configured_calls() {
    let test = "injected_failures_hit_the_configured_calls";
    let environment = [("SIM_INJECT_FAILURES", "cuMemAlloc_v2:2=2,cuMemFree_v2:every2=719")];
    let oracle = oracle_of(test, &environment, |cuda| {
        cuda.start(0);
        let first = cuda.alloc(100);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 100]).0, OUT_OF_MEMORY);
        let second = cuda.alloc(200);
        assert_eq!(cuda.free(first), OK);
        assert_eq!(cuda.free(second), 719);
    });
    assert_eq!(oracle["failed_allocations"], 1);
    assert_eq!(live(&oracle, "device"), [200]);
}

#[test]
fn fatal_signal_writes_the_oracle_first() {
    let test = "fatal_signal_writes_the_oracle_first";
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let ended = isolated(test, &[("SIM_TEST_SIGNAL", &signal.to_string())], |cuda| {
            cuda.start(0);
            cuda.alloc(300);
            let signal = std::env::var("SIM_TEST_SIGNAL").unwrap().parse().unwrap();
            // SAFETY: sends this process a signal; the oracle is written, then it ends.
            unsafe { libc::kill(libc::getpid(), signal) };
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        assert_eq!(ended.output.status.signal(), Some(signal));
        assert_eq!(live(&ended.oracle(), "device"), [300]);
    }
}

#[test]
fn forked_child_has_its_own_driver() {
    let ended = isolated("forked_child_has_its_own_driver", &[], |cuda| {
        cuda.start(0);
        let parents = cuda.alloc(100);
        // SAFETY: the child only uses the driver and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let refused = cuda.out("cuMemAlloc_v2", &[OUT, 1]).0 == NOT_INITIALIZED
                && cuda.call("cuInit", &[0]) == OK
                && cuda.out("cuMemAlloc_v2", &[OUT, 1]).0 == INVALID_CONTEXT
                && cuda.free(parents) == INVALID_VALUE;
            cuda.start(1);
            let again = cuda.alloc(200) == parents;
            std::process::exit(i32::from(!(refused && again)));
        }
        let mut status = 0;
        // SAFETY: waits for the child created above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    });
    assert!(ended.output.status.success());
    let oracles = ended.oracles();
    assert_eq!(live(&oracles[0], "device"), [100]);
    assert_eq!(live(&oracles[1], "device"), [200]);
    assert_eq!(oracles[1]["live"][0]["thread"], oracles[1]["pid"]);
}

#[test]
fn ipc_memory_of_another_process_can_be_opened() {
    /// `cuIpcOpenMemHandle_v2`, whose second argument is passed on the stack.
    fn open(cuda: Library, handle: [u8; 64], flags: u32) -> (i32, u64) {
        #[repr(C)]
        struct Handle([u8; 64]);
        type Open = unsafe extern "C" fn(*mut u64, Handle, u32) -> i32;
        let symbol = cuda.function("cuIpcOpenMemHandle_v2");
        let mut pointer = 0;
        // SAFETY: this is the function's prototype, and the pointer is valid for writing.
        let code = unsafe {
            let open = std::mem::transmute::<*const std::ffi::c_void, Open>(symbol);
            open(&raw mut pointer, Handle(handle), flags)
        };
        (code, pointer)
    }
    let ended = isolated("ipc_memory_of_another_process_can_be_opened", &[], |cuda| {
        if let Ok(text) = std::env::var("SIM_TEST_HANDLE") {
            let bytes: Vec<u8> = text.split(',').map(|byte| byte.parse().unwrap()).collect();
            let handle: [u8; 64] = bytes.try_into().unwrap();
            cuda.start(0);
            assert_eq!(open(cuda, handle, 0).0, INVALID_VALUE);
            let (code, pointer) = open(cuda, handle, 1);
            assert_eq!(code, OK);
            assert_eq!(open(cuda, handle, 1), (OK, pointer));
            assert_eq!(cuda.free(pointer), INVALID_VALUE);
            assert_eq!(cuda.call("cuIpcCloseMemHandle", &[pointer]), OK);
            return;
        }
        cuda.start(0);
        let pointer = cuda.alloc(8 * MIB);
        let mut handle = [0_u8; 64];
        let place = handle.as_mut_ptr() as u64;
        assert_eq!(cuda.call("cuIpcGetMemHandle", &[place, pointer + 100]), OK);
        assert_eq!(open(cuda, handle, 1).0, INVALID_CONTEXT, "not in the same process");
        let text: Vec<String> = handle.iter().map(u8::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                &full_name("ipc_memory_of_another_process_can_be_opened"),
                "--exact",
                "--nocapture",
            ])
            .env("SIM_TEST_HANDLE", text.join(","))
            .status();
        assert!(child.unwrap().success());
    });
    assert!(ended.output.status.success(), "{}", String::from_utf8_lossy(&ended.output.stdout));
    let oracles = ended.oracles();
    assert_eq!(live(&oracles[0], "device"), [8 * MIB]);
    assert_eq!(live(&oracles[1], "imported"), [8 * MIB]);
    assert_eq!(oracles[1]["live_bytes"], 0);
}

#[test]
fn processes_share_device_memory() {
    let test = "processes_share_device_memory";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let environment = [
        ("SIM_STATE_FILE", file.to_str().unwrap()),
        ("SIM_MEMORY", "100M"),
        ("SIM_CONTEXT_OVERHEAD", "10M"),
    ];
    let oracle = oracle_of(test, &environment, |cuda| {
        if std::env::var_os("SIM_TEST_OTHER").is_some() {
            cuda.start(0);
            cuda.alloc(40 * MIB);
            // Killed, so that its slot is not freed.
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        cuda.start(0);
        cuda.alloc(40 * MIB);
        let left = || {
            let mut total = 0_u64;
            cuda.get("cuMemGetInfo_v2", &[OUT, &raw mut total as u64]) / MIB
        };
        assert_eq!(left(), 50);
        let other = Command::new(std::env::current_exe().unwrap())
            .args([&full_name(test), "--exact", "--nocapture"])
            .env("SIM_TEST_OTHER", "1")
            .stdout(Stdio::null())
            .status();
        assert_eq!(other.unwrap().signal(), Some(libc::SIGKILL));
        assert_eq!(left(), 0, "the slot of the killed process is not freed yet");
        cuda.alloc(50 * MIB);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 1]).0, OUT_OF_MEMORY);
        assert_eq!(cuda.out("cuCtxCreate_v2", &[OUT, 0, 1]).0, OK);
        assert_eq!(cuda.alloc(90 * MIB) % 2, 0, "the other device");
    });
    assert_eq!(oracle["live_bytes_by_device"], serde_json::json!([90 * MIB, 90 * MIB]));
    let state = std::fs::read(&file).unwrap();
    assert_eq!(&state[..8], b"VSIMSTA1");
    assert!(state[4096..4096 + 8 * 512].iter().step_by(512).all(|byte| *byte == 0), "all left");
}
