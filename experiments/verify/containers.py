#!/usr/bin/env python3
"""Compares the agent's view of containers with Podman, containerd and the oracle.

usage: containers.py --vramscope PATH --sim DIR [--image FILE] [--root DIR]

Programs run in containers of Podman and containerd; the agent runs on the host and in a container of its own image. Needs
root, podman, buildah, runc, containerd and debootstrap, but no registry. `--root` is a Debian root file system for the base
image, created if it does not exist. `--image` is the container image of `./dev release`: with it, the agent also runs in a
container.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "exporters"))
from hosts import LOOPBACK, Checks, Host, fetch, free_port, wait

POD = "0a1b2c3d-1111-2222-3333-444455556666"
CONTAINER = "7e57ab1e" * 8
PROGRAM = ["workload", "--hold-ms", "1000000", "train", "--steps", "40", "--step-ms", "2"]
# A real driver takes this long to initialize; the agent attaches meanwhile.
INIT_DELAY = "SIM_INIT_MS=500"
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
IMAGE = """FROM localhost/debian:bookworm-slim
COPY --chmod=0755 libcuda.so.1 /opt/driver/libcuda.so.1
COPY --chmod=0755 workload /usr/local/bin/workload
ENV LD_LIBRARY_PATH=/opt/driver
"""


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout.strip()


def podman(*words):
    return run("podman", "--runtime", "runc", *words)


def images(options, directory):
    if not os.path.exists(f"{options.root}/etc/debian_version"):
        run("debootstrap", "--variant=minbase", "bookworm", options.root)
    tar = subprocess.Popen(["tar", "-C", options.root, "--exclude=./proc/*", "--exclude=./sys/*", "-c", "."], stdout=subprocess.PIPE)
    run("podman", "import", "-", "debian:bookworm-slim", stdin=tar.stdout)
    context = directory / "trainer"
    context.mkdir()
    for name in ("libcuda.so.1", "workload"):
        (context / name).write_bytes((pathlib.Path(options.sim) / name).read_bytes())
    (context / "Dockerfile").write_text(IMAGE)
    run("buildah", "bud", "--isolation", "chroot", "-t", "trainer", context)


def settled(get, pid):
    return wait(f"process {pid}", lambda: next(
        one for one in get("/api/v1/processes")["processes"] if one["pid"] == pid and one["allocations_total"] == 160))


def check(checks, what, process, container, oracle_dir):
    """Compares a process with its container, and with the oracle, for which its pid is 1."""
    reported = process["container"]
    checks.equal(f"{what}: container, runtime, pid inside", (reported["id"], reported["runtime"], reported.get("pid")), container)
    oracle = json.loads(wait(f"{what}: the oracle", lambda: (oracle_dir / "1.json").read_text()))
    values = [process[name] for name in ("live_bytes", "peak_bytes", "allocations_total", "frees_total")]
    checks.equal(f"{what}: the oracle", values,
                 [oracle[name] for name in ("live_bytes", "peak_bytes", "allocations", "frees")])
    (oracle_dir / "1.json").unlink()


def with_podman(checks, what, get, oracle_dir, *more):
    name = podman("run", "-d", "--network", "none", *LIMITS, "-e", INIT_DELAY, "-e", "SIM_ORACLE_DIR=/oracle", "-v", f"{oracle_dir}:/oracle", *more,
                  "localhost/trainer", *PROGRAM)
    try:
        pid = int(podman("inspect", "-f", "{{.State.Pid}}", name))
        process = settled(get, pid)
        podman("kill", "-s", "TERM", name)
        podman("wait", name)
        check(checks, what, process, (name, "podman", 1), oracle_dir)
    finally:
        podman("rm", "-f", name)


def with_pod(checks, get, oracle_dir):
    pod = podman("pod", "create", "--infra=false")
    try:
        with_podman(checks, "podman, in a pod", get, oracle_dir, "--pod", pod)
    finally:
        podman("pod", "rm", "-f", pod)


def with_containerd(checks, get, directory, oracle_dir):
    """Runs a container in the cgroup that a kubelet would choose."""
    config = directory / "containerd.toml"
    config.write_text(f'version = 2\nroot = "{directory}/containerd"\nstate = "{directory}/containerd-state"\n'
                        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{directory}/containerd.sock"\n')
    run("podman", "save", "--format", "oci-archive", "-o", directory / "trainer.tar", "localhost/trainer")
    with open(directory / "containerd.log", "w") as log:
        daemon = subprocess.Popen(["containerd", "-c", config], stdout=log, stderr=log)
    ctr = ["ctr", "--address", f"{directory}/containerd.sock"]
    try:
        wait("containerd", lambda: subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode == 0)
        run(*ctr, "images", "import", directory / "trainer.tar")
        run(*ctr, "run", "-d", "--env", INIT_DELAY, "--env", "SIM_ORACLE_DIR=/oracle", "--mount",
            f"type=bind,src={oracle_dir},dst=/oracle,options=rbind:rw", "--cgroup", f"/kubepods/burstable/pod{POD}/{CONTAINER}",
            "localhost/trainer:latest", CONTAINER, *PROGRAM)
        pid = int(run(*ctr, "task", "ls").splitlines()[1].split()[1])
        process = settled(get, pid)
        checks.equal("containerd: pod", process["container"]["pod"]["uid"], POD)
        run(*ctr, "task", "kill", "-s", "TERM", CONTAINER)
        check(checks, "containerd", process, (CONTAINER, "containerd", 1), oracle_dir)
        wait("the end of the container", lambda: "STOPPED" in run(*ctr, "task", "ls"))
        run(*ctr, "task", "rm", CONTAINER)
        run(*ctr, "container", "rm", CONTAINER)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def own_image(checks, options, directory, oracle_dir):
    """Runs the agent in a container with the capabilities of docs/operations/install.md."""
    # Loaded image: localhost/vramscope:VERSION
    image = podman("load", "-i", options.image).split()[-1]
    port, token = free_port(), directory / "token"
    token.write_text("5ecre7" * 6)
    token.chmod(0o600)
    name = podman("run", "-d", "--pid=host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--cap-add", "BPF", "--cap-add",
                  "PERFMON", "--cap-add", "SYS_PTRACE", "--cap-add", "DAC_READ_SEARCH", "--security-opt", "apparmor=unconfined",
                  "--security-opt", "no-new-privileges", "--security-opt", "seccomp=unconfined", *LIMITS, "--network", "host", "-v", "vramscope:/var/lib/vramscope",
                  "-v", f"{token}:/token:ro", image, "serve", "--listen", f"0.0.0.0:{port}", "--token-file", "/token")

    def get(path):
        return json.loads(fetch(f"{LOOPBACK}:{port}{path}", token.read_text()))
    try:
        wait("the agent in its container", lambda: fetch(f"{LOOPBACK}:{port}/readyz"))
        with_podman(checks, "podman, agent in a container", get, oracle_dir)
        began = time.monotonic()
        podman("stop", "-t", "20", name)
        code = podman("inspect", "-f", "{{.State.ExitCode}}", name)
        checks.equal("podman stop ends the agent cleanly", (code, time.monotonic() - began < 15), ("0", True))
    finally:
        subprocess.run(["podman", "logs", name], stderr=subprocess.STDOUT, check=False)
        podman("rm", "-f", name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--image")
    parser.add_argument("--root", default="/tmp/vramscope-bookworm")
    options = parser.parse_args()
    for program in ("podman", "buildah", "runc", "containerd"):
        print(f"     {run(program, '--version').splitlines()[0]}")
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        oracle_dir = directory / "oracle"
        oracle_dir.mkdir()
        images(options, directory)
        host = Host("node-1", directory, options.vramscope, options.sim, "")
        try:
            with_podman(checks, "podman", host.get, oracle_dir)
            with_pod(checks, host.get, oracle_dir)
            with_containerd(checks, host.get, directory, oracle_dir)
        finally:
            host.agent.kill()
        if options.image:
            own_image(checks, options, directory, oracle_dir)
    checks.end()


main()
