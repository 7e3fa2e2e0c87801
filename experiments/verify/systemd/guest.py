#!/usr/bin/env python3
"""Checks the agent's systemd unit inside the virtual machine that run.py boots.

Prints a line for each check, `ok` or `WRONG` with the value found, then powers the machine off.
"""
import json
import os
import pathlib
import pwd
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

UNIT = "vramscope.service"
ADDRESS = "http://127.0.0.1:9754"
SIM = pathlib.Path("/opt/sim")
CONFIG = pathlib.Path("/etc/vramscope/vramscope.toml")
PARANOID = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")
STATE = pathlib.Path("/var/lib/private/vramscope")
POD = "0a1b2c3d-1111-2222-3333-444455556666"
CONTAINER = "5ca1ab1e" * 8
CAPABILITIES = {"cap_bpf": 39, "cap_perfmon": 38, "cap_sys_ptrace": 19, "cap_dac_read_search": 2, "cap_sys_admin": 21}
TIMEOUT_SECONDS = 120
# Milliseconds of cuInit: long enough for an emulated machine to attach the probes meanwhile.
INIT_MS = "30000"

# A Python program that allocates; the agent reads its function names from its memory.
SCRIPT = """
import ctypes, time
driver = ctypes.CDLL("libcuda.so.1")
def keep_a_batch():
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(3 << 20)) == 0
context, device = ctypes.c_void_p(), ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
for _ in range(4):
    keep_a_batch()
time.sleep(100000)
"""

wrong = 0
out = open("/dev/ttyS1", "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - open until the machine powers off


def say(text):
    print(text, file=out)


def check(what, fine, found=""):
    """Prints the result of a check and counts failures."""
    global wrong
    wrong += not fine
    say(f"{'ok   ' if fine else 'WRONG'} {what}{': ' if found != '' else ''}{found}")


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def unit_properties(*names):
    _, text = command("systemctl", "show", UNIT, "--property", ",".join(names))
    return dict(line.split("=", 1) for line in text.splitlines())


def get(path):
    with urllib.request.urlopen(ADDRESS + path, timeout=10) as response:
        text = response.read().decode()
    return json.loads(text) if path.startswith("/api") else text


def wait(what, condition, timeout=TIMEOUT_SECONDS):
    end = time.monotonic() + timeout
    while True:
        try:
            found = condition()
            if found:
                return found
        except (OSError, urllib.error.URLError, KeyError, IndexError, StopIteration):
            pass
        if time.monotonic() > end:
            check(what, False, "timeout")
            return None
        time.sleep(0.2)


def ready(what):
    began = time.monotonic()
    fine = wait(what, lambda: get("/readyz").strip() == "ready")
    if fine:
        check(what, True, f"after {time.monotonic() - began:.1f} s")
    return fine


def process(pid):
    return next(one for one in get("/api/v1/processes")["processes"] if one["pid"] == pid)


def holds(pid, size):
    return lambda: next((one for one in get("/api/v1/processes")["processes"]
                         if one["pid"] == pid and one["live_bytes"] == size), None)


def main_pid():
    return int(unit_properties("MainPID")["MainPID"])


def mode(path):
    return oct(path.stat().st_mode & 0o7777)


def start(words, home, **more):
    """Starts a program of another user, in a home directory that others cannot read."""
    environment = {"LD_LIBRARY_PATH": str(home / "lib"), "SIM_ORACLE_DIR": str(home / "oracle"), "SIM_STATE_FILE": "/srv/sim/devices",
                   "SIM_INIT_MS": INIT_MS}
    return subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, **more)


def prepare():
    command("useradd", "--create-home", "ann")
    ann = pwd.getpwnam("ann")
    home = pathlib.Path(ann.pw_dir)
    (home / "lib").mkdir()
    for name in ("libcuda.so.1", "workload"):
        (home / "lib" / name).write_bytes((SIM / name).read_bytes())
        (home / "lib" / name).chmod(0o755)
    (home / "train.py").write_text(SCRIPT)
    for directory in (home / "oracle", pathlib.Path("/srv/sim"), home / "lib"):
        directory.mkdir(exist_ok=True)
        os.chown(directory, ann.pw_uid, ann.pw_gid)
    home.chmod(0o700)
    (home / "lib").chmod(0o700)
    logs = pathlib.Path(f"/var/log/pods/team_trainer-0_{POD}/main")
    logs.mkdir(parents=True)
    # An emulated machine is slow, and the CPU budget is not checked here.
    config = CONFIG.read_text()
    CONFIG.write_text(config.replace("max_cpu = 25.0", "max_cpu = 1000.0"))
    command("systemctl", "daemon-reload")
    return ann, home


def unit_starts():
    code, text = command("systemctl", "start", UNIT)
    check("the unit starts", code == 0, text)
    if not ready("/readyz answers"):
        print_logs()
        raise RuntimeError("the agent does not work here")
    facts = unit_properties("ActiveState", "SubState", "User", "DynamicUser", "Type", "NotifyAccess", "WatchdogUSec")
    check("the unit runs", (facts["ActiveState"], facts["SubState"]) == ("active", "running"), json.dumps(facts))
    pid = main_pid()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    uid = int(fields["Uid"].split()[0])
    check("it runs as a dynamic user", uid >= 61184, f"uid {uid}")
    bits = int(fields["CapBnd"], 16)
    held = {name for name, bit in CAPABILITIES.items() if bits >> bit & 1}
    check("the capability bounding set is minimal", bits.bit_count() == len(held), f"{fields['CapBnd']} = {sorted(held)}")
    check("it cannot gain privileges", fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2",
         f"NoNewPrivs {fields['NoNewPrivs']}, Seccomp {fields['Seccomp']}")
    # Through its own root: the mount may map owners.
    own = pathlib.Path(f"/proc/{pid}/root/var/lib/vramscope/.")
    check("it owns its state directory", mode(own) == "0o700" and own.stat().st_uid == uid, f"{mode(own)}, uid {own.stat().st_uid}")
    _, security = command("systemd-analyze", "security", "--no-pager", UNIT)
    say(f"     systemd-analyze security: {security.splitlines()[-1].strip()}")


def watches_drivers(when):
    """Returns whether the agent watches for newly loaded drivers, or has to rescan every few seconds."""
    _, journal = command("journalctl", "--no-pager", "-o", "cat", f"_PID={main_pid()}")
    watched = "cannot watch for newly loaded drivers" not in journal
    say(f"     {when} ({PARANOID.read_text().strip()}) new copies of the driver are found by {'watching' if watched else 'rescans'}")
    return watched


def check_other_user(ann, home):
    """Checks a program in an unreadable home directory, with its own copy of the driver."""
    target = start([str(home / "lib/workload"), "--hold-ms", "1000000", "train", "--steps", "40", "--step-ms", "2"],
                   home, user=ann.pw_uid, group=ann.pw_gid)
    settled = wait("a program of another user", lambda: process(target.pid)["allocations_total"] == 160 and process(target.pid))
    if not settled:
        return target, None
    # Symbols are resolved in the background, and may come later.
    if wait("its function names", lambda: "::steps" in json.dumps(get(f"/api/v1/sites?pid={target.pid}"))):
        check("its function names", True, "workload … steps")
    check("it is not in a container", "container" not in settled)
    return target, settled


def check_python(ann, home):
    target = start([sys.executable, str(home / "train.py")], home, user=ann.pw_uid, group=ann.pw_gid)
    if wait("a program in Python", holds(target.pid, 12 << 20)):
        seen = wait("Python function names",
                    lambda: "keep_a_batch" in json.dumps(get(f"/api/v1/sites?pid={target.pid}")))
        if seen:
            check("Python function names", True, "keep_a_batch")
        else:
            say("     " + json.dumps(get(f"/api/v1/sites?pid={target.pid}"))[:2000])
    target.kill()


def check_container():
    """Checks a driver that exists only in a mount namespace, in the cgroup of a pod that systemd created."""
    slices = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
    inside = ("mount -t tmpfs tmpfs /mnt && cp /opt/sim/libcuda.so.1 /mnt/libcuda.so.1 && "
              "export LD_LIBRARY_PATH=/mnt && exec unshare --pid --fork --kill-child --mount-proc "
              "/opt/sim/workload --hold-ms 1000000 leak3")
    scope = subprocess.Popen(["systemd-run", "--quiet", "--scope", f"--slice={slices}", f"--unit=cri-containerd-{CONTAINER}",
                              "unshare", "--mount", "sh", "-c", inside], env={**os.environ, "SIM_INIT_MS": INIT_MS})
    found = wait("a driver inside a container", lambda: next(
        (one for one in get("/api/v1/processes")["processes"]
         if one.get("container", {}).get("id") == CONTAINER and one["live_bytes"] == 8 << 20), None))
    if found:
        pod = found["container"].get("pod", {})
        reported = (found["container"]["runtime"], found["container"].get("pid"), pod.get("name"), pod.get("namespace"))
        check("its container and pod", reported == ("containerd", 1, "trainer-0", "team"), json.dumps(found["container"]))
        check("it is exact, or the driver was loaded before", found["exact"] or found["before_trace"], f"exact {found['exact']}")
    command("systemctl", "stop", f"cri-containerd-{CONTAINER}.scope")
    scope.wait()


def check_out_of_memory(ann, home):
    target = start([str(home / "lib/workload"), "oom"], home, user=ann.pw_uid, group=ann.pw_gid)
    target.wait()
    found = wait("an out-of-memory incident", lambda: get("/api/v1/incidents")["incidents"])
    if found:
        directory = STATE / "incidents" / found[0]["id"]
        files = sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []
        check("only the agent can read its files", bool(files) and mode(directory) == "0o700"
             and all(mode(path) == "0o600" for path in files), f"{len(files)} files in {directory.name}, {mode(directory)}")


def check_restarts():
    PARANOID.write_text("2")
    before = main_pid()
    code, text = command("systemctl", "restart", UNIT)
    check("systemctl restart", code == 0 and main_pid() != before, text or f"{before} -> {main_pid()}")
    ready("/readyz answers again")
    check("new copies of the driver are found by watching", watches_drivers("with 2"))
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    began = time.monotonic()
    after = wait("systemd starts it again", lambda: main_pid() not in (0, before) and main_pid())
    if after:
        check("systemd starts it again after SIGKILL", True,
             f"after {time.monotonic() - began:.1f} s, NRestarts {unit_properties('NRestarts')['NRestarts']}")
        ready("/readyz answers after SIGKILL")


def check_oracle(target, home, settled):
    """Compares a process with the oracle."""
    target.send_signal(signal.SIGTERM)
    target.wait()
    oracle = json.loads((home / "oracle" / f"{target.pid}.json").read_text())
    for ours, theirs in [("live_bytes", "live_bytes"), ("peak_bytes", "peak_bytes"),
                         ("allocations_total", "allocations"), ("frees_total", "frees")]:
        check(f"{ours} equals the oracle", settled[ours] == oracle[theirs], f"{settled[ours]}")
    # On an emulated machine, probes that are attached one by one may be late.
    check("values are exact, or the driver was loaded before", settled["exact"] or settled["before_trace"],
         f"exact {settled['exact']}")


def count_probes():
    """Counts open BPF and perf files on the machine; systemd has some of its own."""
    return int(command("sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c 'bpf-\\|bpf_\\|perf_event'")[1])


def check_stop(before):
    began = time.monotonic()
    code, _ = command("systemctl", "stop", UNIT)
    facts = unit_properties("ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
    clean = (facts["ActiveState"], facts["Result"], facts["ExecMainStatus"]) == ("inactive", "success", "0")
    check("systemctl stop ends it cleanly", code == 0 and clean, f"{time.monotonic() - began:.1f} s, {json.dumps(facts)}")
    check("no probe is left", count_probes() == before, f"{count_probes()} BPF files, as before")


def check_invalid_config():
    before = CONFIG.read_text()
    CONFIG.write_text(before.replace("max_cpu", "max_cup"))
    code, _ = command("systemctl", "start", UNIT)
    _, journal = command("journalctl", "--no-pager", "-o", "cat", "-u", UNIT, "-n", "20")
    check("an invalid configuration is rejected by name", code != 0 and "max_cup" in journal)
    command("systemctl", "stop", UNIT)
    command("systemctl", "reset-failed", UNIT)
    CONFIG.write_text(before)


def print_logs():
    _, journal = command("journalctl", "--no-pager", "-o", "cat", "-u", UNIT)
    say("     log of the unit:")
    for line in journal.splitlines():
        say(f"       {line}")
    _, kernel = command("sh", "-c", "dmesg | grep -i 'audit\\|seccomp\\|segfault\\|oom-kill' | tail -5")
    for line in kernel.splitlines():
        say(f"     kernel: {line}")


def main():
    _, version = command("systemctl", "--version")
    say(f"     Linux {os.uname().release}, {version.splitlines()[0]}, pid 1 is {pathlib.Path('/proc/1/comm').read_text().strip()}")
    ann, home = prepare()
    before = count_probes()
    unit_starts()
    watches_drivers("with the kernel's own perf_event_paranoid")
    target, settled = check_other_user(ann, home)
    check_python(ann, home)
    check_container()
    check_restarts()
    if settled:
        check_oracle(target, home, settled)
    check_out_of_memory(ann, home)
    check_stop(before)
    check_invalid_config()


try:
    main()
except Exception as error:  # noqa: BLE001 - the machine must power off in any case
    check("the checks themselves", False, repr(error))
print_logs()
say(f"wrong: {wrong}")
out.close()
command("systemctl", "poweroff", "--force")
