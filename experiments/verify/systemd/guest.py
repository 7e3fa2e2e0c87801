#!/usr/bin/env python3
"""Runs in the virtual machine that run.py boots: the agent's unit under a systemd that is the machine's own.

Prints a line for each thing that was looked at, `ok` or `WRONG`, and what was found. Ends the machine.
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
SETTINGS = pathlib.Path("/etc/vramscope/vramscope.toml")
PARANOID = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")
STATE = pathlib.Path("/var/lib/private/vramscope")
POD = "0a1b2c3d-1111-2222-3333-444455556666"
CONTAINER = "5ca1ab1e" * 8
CAPABILITIES = {"cap_bpf": 39, "cap_perfmon": 38, "cap_sys_ptrace": 19, "cap_dac_read_search": 2, "cap_sys_admin": 21}
PATIENCE = 120
# A driver takes long to begin here: the probes are attached meanwhile, also by an emulated machine.
SLOW = "30000"

# A Python program that allocates: its functions are told by reading its memory.
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
out = open("/dev/ttyS1", "w", buffering=1, encoding="utf-8")


def say(text):
    print(text, file=out)


def look(what, fine, found=""):
    global wrong
    wrong += not fine
    say(f"{'ok   ' if fine else 'WRONG'} {what}{': ' if found != '' else ''}{found}")


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def shown(*names):
    _, text = command("systemctl", "show", UNIT, "--property", ",".join(names))
    return dict(line.split("=", 1) for line in text.splitlines())


def get(path):
    with urllib.request.urlopen(ADDRESS + path, timeout=10) as answer:
        text = answer.read().decode()
    return json.loads(text) if path.startswith("/api") else text


def wait(what, check, patience=PATIENCE):
    end = time.monotonic() + patience
    while True:
        try:
            found = check()
            if found:
                return found
        except (OSError, urllib.error.URLError, KeyError, IndexError, StopIteration):
            pass
        if time.monotonic() > end:
            look(what, False, "never came")
            return None
        time.sleep(0.2)


def ready(what):
    began = time.monotonic()
    fine = wait(what, lambda: get("/readyz").strip() == "ready")
    if fine:
        look(what, True, f"after {time.monotonic() - began:.1f} s")
    return fine


def process(pid):
    return next(one for one in get("/api/v1/processes")["processes"] if one["pid"] == pid)


def holds(pid, size):
    return lambda: next((one for one in get("/api/v1/processes")["processes"]
                         if one["pid"] == pid and one["live_bytes"] == size), None)


def main_pid():
    return int(shown("MainPID")["MainPID"])


def mode(path):
    return oct(path.stat().st_mode & 0o7777)


def start(words, home, **more):
    """A program of another user, in a home that is closed to others."""
    environment = {"LD_LIBRARY_PATH": str(home / "lib"), "SIM_ORACLE_DIR": str(home / "truth"), "SIM_STATE_FILE": "/srv/sim/devices",
                   "SIM_INIT_MS": SLOW}
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
    for folder in (home / "truth", pathlib.Path("/srv/sim"), home / "lib"):
        folder.mkdir(exist_ok=True)
        os.chown(folder, ann.pw_uid, ann.pw_gid)
    home.chmod(0o700)
    (home / "lib").chmod(0o700)
    logs = pathlib.Path(f"/var/log/pods/team_trainer-0_{POD}/main")
    logs.mkdir(parents=True)
    # An emulated machine is slow: what the budget does is not what is looked at.
    settings = SETTINGS.read_text()
    SETTINGS.write_text(settings.replace("max_cpu = 25.0", "max_cpu = 1000.0"))
    command("systemctl", "daemon-reload")
    return ann, home


def start_of_unit():
    code, text = command("systemctl", "start", UNIT)
    look("the unit starts", code == 0, text)
    if not ready("/readyz answers"):
        tell()
        raise RuntimeError("the agent is of no use here")
    facts = shown("ActiveState", "SubState", "User", "DynamicUser", "Type", "NotifyAccess", "WatchdogUSec")
    look("the unit runs", (facts["ActiveState"], facts["SubState"]) == ("active", "running"), json.dumps(facts))
    pid = main_pid()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    uid = int(fields["Uid"].split()[0])
    look("it is no user of the machine", uid >= 61184, f"uid {uid}")
    bits = int(fields["CapBnd"], 16)
    held = {name for name, bit in CAPABILITIES.items() if bits >> bit & 1}
    look("it can have no more than it asks for", bin(bits).count("1") == len(held), f"{fields['CapBnd']} = {sorted(held)}")
    look("nothing can be gained", fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2",
         f"NoNewPrivs {fields['NoNewPrivs']}, Seccomp {fields['Seccomp']}")
    # As it sees it: the mount may map owners.
    own = pathlib.Path(f"/proc/{pid}/root/var/lib/vramscope/.")
    look("its folder is its own", mode(own) == "0o700" and own.stat().st_uid == uid, f"{mode(own)}, uid {own.stat().st_uid}")
    _, security = command("systemd-analyze", "security", "--no-pager", UNIT)
    say(f"     systemd-analyze security: {security.splitlines()[-1].strip()}")


def told_of_drivers(when):
    """Whether this start of the unit is told of new drivers, or has to look for them every few seconds."""
    _, journal = command("journalctl", "--no-pager", "-o", "cat", f"_PID={main_pid()}")
    told = "cannot watch for newly loaded drivers" not in journal
    say(f"     {when} ({PARANOID.read_text().strip()}) new copies of the driver are {'told of' if told else 'looked for'}")
    return told


def of_another_user(ann, home):
    """A program in a home that nobody else can read, and its own copy of the driver."""
    player = start([str(home / "lib/workload"), "--hold-ms", "1000000", "train", "--steps", "40", "--step-ms", "2"],
                   home, user=ann.pw_uid, group=ann.pw_gid)
    settled = wait("a program of another user", lambda: process(player.pid)["allocations_total"] == 160 and process(player.pid))
    if not settled:
        return player, None
    # Names are found beside, and may come later.
    if wait("names of its functions", lambda: "workload::programs::many::steps" in json.dumps(get(f"/api/v1/sites?pid={player.pid}"))):
        look("names of its functions", True, "workload::programs::many::steps")
    look("it is not in a container", "container" not in settled)
    return player, settled


def of_python(ann, home):
    player = start([sys.executable, str(home / "train.py")], home, user=ann.pw_uid, group=ann.pw_gid)
    if wait("a program in Python", holds(player.pid, 12 << 20)):
        seen = wait("names of Python's functions",
                    lambda: "keep_a_batch" in json.dumps(get(f"/api/v1/sites?pid={player.pid}")))
        if seen:
            look("names of Python's functions", True, "keep_a_batch")
        else:
            say("     " + json.dumps(get(f"/api/v1/sites?pid={player.pid}"))[:2000])
    player.kill()


def of_a_container():
    """A driver that only a mount namespace has, in the cgroup of a pod that systemd made."""
    slices = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
    inside = ("mount -t tmpfs tmpfs /mnt && cp /opt/sim/libcuda.so.1 /mnt/libcuda.so.1 && "
              "export LD_LIBRARY_PATH=/mnt && exec unshare --pid --fork --kill-child --mount-proc "
              "/opt/sim/workload --hold-ms 1000000 leak3")
    scope = subprocess.Popen(["systemd-run", "--quiet", "--scope", f"--slice={slices}", f"--unit=cri-containerd-{CONTAINER}",
                              "unshare", "--mount", "sh", "-c", inside], env={**os.environ, "SIM_INIT_MS": SLOW})
    found = wait("a driver inside a container", lambda: next(
        (one for one in get("/api/v1/processes")["processes"]
         if one.get("container", {}).get("id") == CONTAINER and one["live_bytes"] == 8 << 20), None))
    if found:
        pod = found["container"].get("pod", {})
        told = (found["container"]["runtime"], found["container"].get("pid"), pod.get("name"), pod.get("namespace"))
        look("its container and pod", told == ("containerd", 1, "trainer-0", "team"), json.dumps(found["container"]))
        look("all of it was seen, or the driver was there before", found["exact"] or found["before_trace"], f"exact {found['exact']}")
    command("systemctl", "stop", f"cri-containerd-{CONTAINER}.scope")
    scope.wait()


def of_memory_that_runs_out(ann, home):
    player = start([str(home / "lib/workload"), "oom"], home, user=ann.pw_uid, group=ann.pw_gid)
    player.wait()
    found = wait("a snapshot of memory that ran out", lambda: get("/api/v1/incidents")["incidents"])
    if found:
        folder = STATE / "incidents" / found[0]["id"]
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        look("its files are for the agent alone", bool(files) and mode(folder) == "0o700"
             and all(mode(path) == "0o600" for path in files), f"{len(files)} files in {folder.name}, {mode(folder)}")


def restarts():
    PARANOID.write_text("2")
    before = main_pid()
    code, text = command("systemctl", "restart", UNIT)
    look("systemctl restart", code == 0 and main_pid() != before, text or f"{before} -> {main_pid()}")
    ready("/readyz answers again")
    look("new copies of the driver are told of", told_of_drivers("with 2"))
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    began = time.monotonic()
    after = wait("systemd starts it again", lambda: main_pid() not in (0, before) and main_pid())
    if after:
        look("systemd starts it again after SIGKILL", True,
             f"after {time.monotonic() - began:.1f} s, NRestarts {shown('NRestarts')['NRestarts']}")
        ready("/readyz answers after SIGKILL")


def truth(player, home, settled):
    """What the program held, by the driver's own account."""
    player.send_signal(signal.SIGTERM)
    player.wait()
    oracle = json.loads((home / "truth" / f"{player.pid}.json").read_text())
    for ours, theirs in [("live_bytes", "live_bytes"), ("peak_bytes", "peak_bytes"),
                         ("allocations_total", "allocations"), ("frees_total", "frees")]:
        look(f"{ours} is the driver's own", settled[ours] == oracle[theirs], f"{settled[ours]}")
    # Probes that are attached one by one can come late to an emulated machine.
    look("the figures are exact, or the driver was there before", settled["exact"] or settled["before_trace"],
         f"exact {settled['exact']}")


def probes():
    """Open files of BPF and of perf: systemd has some of its own."""
    return int(command("sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c 'bpf-\\|bpf_\\|perf_event'")[1])


def stop(before):
    began = time.monotonic()
    code, text = command("systemctl", "stop", UNIT)
    facts = shown("ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
    clean = (facts["ActiveState"], facts["Result"], facts["ExecMainStatus"]) == ("inactive", "success", "0")
    look("systemctl stop ends it in good order", code == 0 and clean, f"{time.monotonic() - began:.1f} s, {json.dumps(facts)}")
    look("no probe is left", probes() == before, f"{probes()} files of BPF, as before")


def wrong_settings():
    before = SETTINGS.read_text()
    SETTINGS.write_text(before.replace("max_cpu", "max_cup"))
    code, _ = command("systemctl", "start", UNIT)
    _, journal = command("journalctl", "--no-pager", "-o", "cat", "-u", UNIT, "-n", "20")
    look("wrong settings keep it from starting, and are named", code != 0 and "max_cup" in journal)
    command("systemctl", "stop", UNIT)
    command("systemctl", "reset-failed", UNIT)
    SETTINGS.write_text(before)


def tell():
    _, journal = command("journalctl", "--no-pager", "-o", "cat", "-u", UNIT)
    say("     what the unit said:")
    for line in journal.splitlines():
        say(f"       {line}")
    _, kernel = command("sh", "-c", "dmesg | grep -i 'audit\\|seccomp\\|segfault\\|oom-kill' | tail -5")
    for line in kernel.splitlines():
        say(f"     kernel: {line}")


def main():
    _, version = command("systemctl", "--version")
    say(f"     Linux {os.uname().release}, {version.splitlines()[0]}, pid 1 is {pathlib.Path('/proc/1/comm').read_text().strip()}")
    ann, home = prepare()
    before = probes()
    start_of_unit()
    told_of_drivers("with the kernel's own perf_event_paranoid")
    player, settled = of_another_user(ann, home)
    of_python(ann, home)
    of_a_container()
    restarts()
    if settled:
        truth(player, home, settled)
    of_memory_that_runs_out(ann, home)
    stop(before)
    wrong_settings()


try:
    main()
except Exception as error:  # noqa: BLE001 - the machine must end, whatever happens
    look("the checks themselves", False, repr(error))
tell()
say(f"wrong: {wrong}")
out.close()
command("systemctl", "poweroff", "--force")
