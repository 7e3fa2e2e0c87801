#!/usr/bin/env python3
"""Checks vramscope on the kernel that run.py boots. Runs as the first process, on the simulated driver.

Writes one JSON object per check to the second serial port, or to the only one on arm64: capability, attach mode, whether it works and what was found.
"""
import fcntl
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import time
import traceback
import urllib.request

import oracle

VRAMSCOPE = "/usr/bin/vramscope"
SIM = pathlib.Path("/opt/sim")
WORKLOAD = str(SIM / "workload")
ADDRESS = "127.0.0.1:9754"
# The function of `train` that allocates; `steps` alone is also in its command line.
STEPS = "programs::threads::steps"
TIMEOUT_SECONDS = 1200
# Memory of every kind, threads, processes, contexts, devices, failures; each process is compared with its oracle.
PROGRAMS = """
leak3 --work-ms 50 --wait-ms 50
train --steps 40 --step-ms 2
kinds
threads --threads 4 --duration 1
stressor --duration 2 --sleep-ms 20
contexts
fork
exec
ipc
copies
objects
launches --iterations 5
hold --count 2000 --size 4096 --distinct --wait-ms 100
torch-leak --steps 20
--seed 7 random --ops 1500 --threads 4 --devices 3
"""
# Stand-ins for the pools of CuPy and XLA. They wait in `cuInit` until the probes are attached, which takes seconds here.
POOLS = {"cupy": "/opt/pools/cupy/cuda/memory.cpython-312.so", "xla": "/opt/pools/xla_cuda_plugin.so"}
POOL_FIELDS = [("allocated_bytes", "used"), ("reserved_bytes", "total"), ("live_blocks", "blocks")]
TORCH_FIELDS = [("allocated_bytes", "allocated"), ("tracked_bytes", "allocated"), ("reserved_bytes", "reserved"), ("peak_bytes", "peak"),
                ("live_blocks", "blocks"), ("allocations_total", "allocations"), ("frees_total", "frees"), ("ooms_total", "ooms")]
# On the command line of the kernel.
HARDENED_ONLY = "vramscope_checks=hardened"

# Allocates four times in a function whose name is only in the memory of the interpreter. The tracer searches the interpreter when
# the program loads the driver, and reads names while it runs. A real driver takes long enough to initialize; the simulated one
# does not, on an emulated machine that takes seconds for the search.
SCRIPT = """
import ctypes, time
driver = ctypes.CDLL("libcuda.so.1")
def keep_a_batch():
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(3 << 20)) == 0
context, device = ctypes.c_void_p(), ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
time.sleep(15)
for _ in range(4):
    keep_a_batch()
time.sleep(10)
"""

# As profiles of containers: no access to processes outside.
PROFILE = """
profile vramscope-test flags=(attach_disconnected) {
    capability, file, network, signal, mount, umount, unix,
    ptrace peer=vramscope-test,
}
"""
CAPABILITIES = ("bpf", "perfmon", "sys_ptrace", "dac_read_search")

PORT = "/dev/ttyAMA0" if os.uname().machine == "aarch64" else "/dev/ttyS1"
out = open(PORT, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - open until the machine powers off


def report(capability, fine, found="", mode=None):
    print(json.dumps({"capability": capability, "mode": mode, "works": bool(fine), "found": str(found)[-2000:]}), file=out)


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS, **more)


def oracle_dir(name):
    path = pathlib.Path("/tmp") / name
    path.mkdir()
    os.environ["SIM_ORACLE_DIR"] = str(path)
    return path


def last_report(done):
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else {"processes": [], "stderr": done.stderr}


def compare(done, oracles):
    """Compares the last report with the oracles. Returns the differences."""
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr}"
    last = last_report(done)
    wrong = [] if last.get("exact") and not last["lost_events"] else [f"not exact: {last.get('notes')} {done.stderr}"]
    files = list(oracles.glob("[0-9]*.json"))
    for file in files:
        expected = json.loads(file.read_text())
        # A process that called exec is reported once for each program.
        found = [oracle.differences(process, expected) for process in last["processes"] if process["pid"] == expected["pid"]]
        wrong += min(found, key=len, default=[f"process {expected['pid']} is missing"])
    return "; ".join(wrong) or ("" if files else f"no oracle: {done.stderr}")


def trace_programs(name, *words):
    """Traces PROGRAMS, one after the other. Returns the result and the differences to the oracles."""
    directory = oracle_dir(name)
    lines = [f"{WORKLOAD} {line}" for line in PROGRAMS.split("\n") if line]
    os.environ["SIM_DEVICES"] = "3"
    done = run(VRAMSCOPE, *words, "--json", "--top", "1000000", "--", "sh", "-c", "\n".join(lines))
    del os.environ["SIM_DEVICES"]
    # `stressor` only starts four processes; `fork` and `ipc` have one child each.
    expected = len(lines) + 5
    found = len(list(directory.glob("[0-9]*.json")))
    return done, compare(done, directory) or ("" if found >= expected else f"{found} oracles, expected {expected}")


def check_allocators(mode):
    """Compares the blocks of simulated pools with the pools' own figures."""
    directory = oracle_dir(f"{mode or 'run'}-allocators")
    lines = [f"{'SIM_WAIT_PROBED=1' if mode else ''} {WORKLOAD} --hold-ms 300 torch-leak --refuse"]
    kinds = POOLS if mode else {}  # in-process, only PyTorch is traced
    lines += [f"SIM_INIT_MS=20000 python3 /opt/pools/pools.py {library} {kind} {directory}/own-{kind}.json" for kind, library in kinds.items()]
    verb = ["trace", "--attach-mode", mode] if mode else ["run"]
    done = run(VRAMSCOPE, *verb, "--json", "--allocators", "--", "sh", "-c", "\n".join(lines))
    wrong = compare(done, directory)
    seen = {}
    for process in last_report(done)["processes"]:
        for view in process.get("allocators", []):
            seen[view["allocator"]] = view
    own = {kind: json.loads((directory / f"own-{kind}.json").read_text()) for kind in kinds}
    own["pytorch"] = json.loads(next(directory.glob("torch-*.json")).read_text())["devices"][0]
    for kind, expected in own.items():
        view = seen.get(kind, {"exact": False, "pools": []})
        pool = view["pools"][0] if view["pools"] else {}
        fields = TORCH_FIELDS if kind == "pytorch" else POOL_FIELDS
        different = [f"{ours} {pool.get(ours)}, own {expected[theirs]}" for ours, theirs in fields if pool.get(ours) != expected[theirs]]
        if different or not view["exact"]:
            wrong += f"; {kind}: exact {view['exact']} {view.get('unavailable_reason', '')} {different}"
    report("allocators", not wrong, f"{wrong} {done.stderr}", mode)


def check_mode(mode):
    """Checks everything that depends on the attach mode."""
    def trace(name, *words, command):
        directory = oracle_dir(f"{mode}-{name}")
        return run(VRAMSCOPE, *words, "--json", "--attach-mode", mode, "--", *command), directory

    done, wrong = trace_programs(f"{mode}-programs", "trace", "--attach-mode", mode)
    report("exact ledger", not wrong, wrong, mode)
    report("native stacks", STEPS in done.stdout, done.stderr, mode)
    done, directory = trace("python", "trace", command=["python3", "/tmp/train.py"])
    wrong = compare(done, directory)
    report("Python stacks", not wrong and "keep_a_batch" in done.stdout, wrong or done.stderr, mode)
    done, _ = trace("kernels", "kernels", command=[WORKLOAD, "launches", "--iterations", "40"])
    last = last_report(done)
    process = next(iter(last["processes"]), {})
    report("kernel launches", last.get("exact") and process.get("launches_total", 0) > 0, f"{process.get('launches_total')} {done.stderr}", mode)
    check_allocators(mode)
    check_kill(mode)


def check_kill(mode):
    """Kills the tracer: the traced program continues, and a new trace works at once."""
    oracle_dir(f"{mode}-kill")
    target = subprocess.Popen([WORKLOAD, "train", "--steps", "100000", "--step-ms", "2"])
    tracer = subprocess.Popen([VRAMSCOPE, "trace", "--attach-mode", mode, "--json", "--interval", "100ms", "-p", str(target.pid)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    seen = next((line for line in tracer.stdout if json.loads(line)["processes"]), "")
    tracer.kill()
    tracer.wait()
    alive = target.poll() is None
    again = run(VRAMSCOPE, "trace", "--attach-mode", mode, "--json", "--duration", "3s", "-p", target.pid)
    traced = bool(last_report(again)["processes"])
    target.send_signal(signal.SIGTERM)
    code = target.wait()
    report("kill -9 of the tracer", seen and alive and traced and code == 0,
           f"reported {bool(seen)}, alive {alive}, traced again {traced}, exit {code} {again.stderr}", mode)


def get(path):
    # The agent answers with a small share of a core: on an emulated machine that can take minutes.
    with urllib.request.urlopen("http://127.0.0.1:9754" + path, timeout=TIMEOUT_SECONDS) as response:
        return response.read().decode()


def wait(condition):
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    return None


def check_agent():
    agent = subprocess.Popen([VRAMSCOPE, "serve", "--listen", ADDRESS, "--state-dir", "/tmp/state"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ready = wait(lambda: get("/readyz").strip() == "ready")
    target = subprocess.Popen([WORKLOAD, "--hold-ms", "1000000", "leak3"])
    found = wait(lambda: next((one for one in json.loads(get("/api/v1/processes"))["processes"] if one["pid"] == target.pid), None))
    metrics = "vramscope_" in get("/metrics") if ready else False
    target.terminate()
    target.wait()
    agent.terminate()
    _, log = agent.communicate(timeout=TIMEOUT_SECONDS)
    report("agent", ready and found and metrics and agent.returncode == 0, f"exit {agent.returncode} {log[-1500:]}")


def check_in_process():
    _, wrong = trace_programs("run", "run")
    report("run (in-process)", not wrong, wrong)
    check_allocators(None)


def restriction(name, *prefix):
    """Returns the effect of a security setting that doctor reports, and whether tracing works."""
    facts = json.loads(run(*prefix, VRAMSCOPE, "doctor", "--json").stdout)
    effects = [row["effect"] for row in facts["restrictions"] if row["name"] == name]
    return (effects or ["not reported"])[0], facts["works"]


def outcome(name, verb, *prefix):
    """Returns "exact", or the differences to the oracle and the error message."""
    directory = oracle_dir(f"hardened-{name}-{verb}")
    directory.chmod(0o777)
    os.environ["SIM_STATE_FILE"] = str(directory / "devices")
    done = run(*prefix, VRAMSCOPE, verb, "--json", "--", WORKLOAD, "leak3", "--work-ms", "50", "--wait-ms", "50")
    return compare(done, directory) or "exact"


def check_hardened(modes):
    """Checks the effect of security settings against what doctor says. Some last until the machine powers off: they come last."""
    def check(name, expected, found):
        report(f"hardened: {name}", found == expected, f"{found}, expected {expected}")

    inside = ["unshare", "--user", "--map-root-user"]
    check("user namespace", (("refused", False), "exact"), (restriction("user_namespace", *inside), outcome("user", "run", *inside)))
    pathlib.Path("/tmp/profile").write_text(PROFILE)
    loaded = run("apparmor_parser", "--replace", "--skip-cache", "/tmp/profile")
    inside = ["aa-exec", "-p", "vramscope-test", "--"]
    check("AppArmor profile", (0, ("may_refuse", True), "exact"),
          (loaded.returncode, restriction("apparmor", *inside), outcome("apparmor", "trace", *inside)))
    sysctl = pathlib.Path("/proc/sys/kernel")
    (sysctl / "perf_event_paranoid").write_text("3")
    capabilities = "-all," + ",".join(f"+{name}" for name in CAPABILITIES)
    inside = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
    if "multi" in modes:
        check("perf_event_paranoid 3 without CAP_SYS_ADMIN", (("limited", True), "exact"),
              (restriction("perf_event_paranoid", *inside), outcome("paranoid", "trace", *inside)))
    (sysctl / "yama/ptrace_scope").write_text("3")
    check("ptrace_scope 3", (("limited", True), "exact"), (restriction("ptrace_scope"), outcome("ptrace", "trace")))
    lockdown = pathlib.Path("/sys/kernel/security/lockdown")
    lockdown.write_text("integrity")
    check("lockdown integrity", (("none", True), "exact"), (restriction("lockdown"), outcome("integrity", "trace")))
    lockdown.write_text("confidentiality")
    check("lockdown confidentiality", (("refused", False), "exact", True),
          (restriction("lockdown"), outcome("confidentiality", "run"), "lockdown" in outcome("confidentiality", "trace")))


def prepare():
    """Brings up the loopback interface."""
    os.environ.update({"LD_LIBRARY_PATH": str(SIM), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root",
                       "SIM_STATE_FILE": "/tmp/devices"})
    pathlib.Path("/tmp/train.py").write_text(SCRIPT)
    with socket.socket() as connection:
        up = struct.pack("16sh14x", b"lo", 0x41)
        fcntl.ioctl(connection, 0x8914, up)


def main():
    prepare()
    report("kernel", True, os.uname().release)
    done = run(VRAMSCOPE, "doctor", "--json")
    facts = json.loads(done.stdout)
    modes = [mode["name"] for mode in facts["attach_modes"] if mode.get("works")]
    # A kernel that is too old is refused with a reason; `run` works there.
    report("doctor", done.returncode == (0 if modes else 1) and facts["works"] == bool(modes), done.stdout + done.stderr)
    for mode in facts["attach_modes"]:
        report("attach mode", mode.get("works"), mode.get("error", ""), mode["name"])
    if HARDENED_ONLY not in pathlib.Path("/proc/cmdline").read_text():
        check_in_process()
        for mode in modes:
            check_mode(mode)
        if modes:
            check_agent()
    if modes:
        check_hardened(modes)


try:
    main()
except BaseException:  # noqa: BLE001 - the machine must power off in any case
    report("the checks themselves", False, traceback.format_exc())
report("done", True)
out.close()
os.sync()
pathlib.Path("/proc/sysrq-trigger").write_text("o")
time.sleep(60)
