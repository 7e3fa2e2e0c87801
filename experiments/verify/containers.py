#!/usr/bin/env python3
"""Runs programs in containers of Podman and containerd, the agent on the host and in a container of its own image, and
compares what the agent says of them with what the runtimes and the driver say.

usage: containers.py --vramscope PATH --sim FOLDER [--static PATH] [--root FOLDER]

Needs root, podman, buildah, runc, containerd and debootstrap; no registry. `--root` is a Debian for the base image, made where
it is not there. `--static` is the binary of `./dev release`: with it, contrib/docker/Dockerfile is built and run, too.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "onward"))
from hosts import LOOPBACK, Host, Verdict, fetch, free_port, wait  # noqa: E402

CONTRIB = pathlib.Path(__file__).resolve().parents[2] / "contrib"
POD = "0a1b2c3d-1111-2222-3333-444455556666"
CONTAINER = "7e57ab1e" * 8
WORK = ["workload", "--hold-ms", "1000000", "train", "--steps", "40", "--step-ms", "2"]
# A real driver takes this long to begin; the agent attaches meanwhile.
SLOW = "SIM_INIT_MS=500"
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
IMAGE = """FROM localhost/debian:bookworm-slim
COPY --chmod=0755 libcuda.so.1 /opt/driver/libcuda.so.1
COPY --chmod=0755 workload /usr/local/bin/workload
ENV LD_LIBRARY_PATH=/opt/driver
"""


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout.strip()


def podman(*words):
    return run("podman", "--runtime", "runc", *words)


def images(options, folder):
    if not os.path.exists(f"{options.root}/etc/debian_version"):
        run("debootstrap", "--variant=minbase", "bookworm", options.root)
    tar = subprocess.Popen(["tar", "-C", options.root, "--exclude=./proc/*", "--exclude=./sys/*", "-c", "."], stdout=subprocess.PIPE)
    run("podman", "import", "-", "debian:bookworm-slim", stdin=tar.stdout)
    context = folder / "trainer"
    context.mkdir()
    for name in ("libcuda.so.1", "workload"):
        (context / name).write_bytes((pathlib.Path(options.sim) / name).read_bytes())
    (context / "Dockerfile").write_text(IMAGE)
    run("buildah", "bud", "--isolation", "chroot", "-t", "trainer", context)


def settled(get, pid):
    return wait(f"process {pid}", lambda: next(
        one for one in get("/api/v1/processes")["processes"] if one["pid"] == pid and one["allocations_total"] == 160))


def check(verdict, what, process, container, truth):
    """The process as the agent told it, and the account of a driver that knows it as number 1."""
    told = process["container"]
    verdict.look(f"{what}: container, runtime, number inside", (told["id"], told["runtime"], told.get("pid")), container)
    oracle = json.loads(wait(f"{what}: the driver's account", lambda: (truth / "1.json").read_text()))
    figures = [process[name] for name in ("live_bytes", "peak_bytes", "allocations_total", "frees_total")]
    verdict.look(f"{what}: the driver's own account", figures,
                 [oracle[name] for name in ("live_bytes", "peak_bytes", "allocations", "frees")])
    (truth / "1.json").unlink()


def with_podman(verdict, what, get, truth, *more):
    name = podman("run", "-d", "--network", "none", *LIMITS, "-e", SLOW, "-e", "SIM_ORACLE_DIR=/truth", "-v", f"{truth}:/truth", *more,
                  "localhost/trainer", *WORK)
    try:
        pid = int(podman("inspect", "-f", "{{.State.Pid}}", name))
        process = settled(get, pid)
        podman("kill", "-s", "TERM", name)
        podman("wait", name)
        check(verdict, what, process, (name, "podman", 1), truth)
    finally:
        podman("rm", "-f", name)


def with_pod(verdict, get, truth):
    pod = podman("pod", "create", "--infra=false")
    try:
        with_podman(verdict, "podman, in a pod", get, truth, "--pod", pod)
    finally:
        podman("pod", "rm", "-f", pod)


def with_containerd(verdict, get, folder, truth):
    """In the cgroup that a kubelet would choose."""
    settings = folder / "containerd.toml"
    settings.write_text(f'version = 2\nroot = "{folder}/containerd"\nstate = "{folder}/containerd-state"\n'
                        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{folder}/containerd.sock"\n')
    run("podman", "save", "--format", "oci-archive", "-o", folder / "trainer.tar", "localhost/trainer")
    with open(folder / "containerd.log", "w") as log:
        daemon = subprocess.Popen(["containerd", "-c", settings], stdout=log, stderr=log)
    ctr = ["ctr", "--address", f"{folder}/containerd.sock"]
    try:
        wait("containerd", lambda: subprocess.run([*ctr, "version"], capture_output=True).returncode == 0)
        run(*ctr, "images", "import", folder / "trainer.tar")
        run(*ctr, "run", "-d", "--env", SLOW, "--env", "SIM_ORACLE_DIR=/truth", "--mount",
            f"type=bind,src={truth},dst=/truth,options=rbind:rw", "--cgroup", f"/kubepods/burstable/pod{POD}/{CONTAINER}",
            "localhost/trainer:latest", CONTAINER, *WORK)
        pid = int(run(*ctr, "task", "ls").splitlines()[1].split()[1])
        process = settled(get, pid)
        verdict.look("containerd: pod", process["container"]["pod"]["uid"], POD)
        run(*ctr, "task", "kill", "-s", "TERM", CONTAINER)
        check(verdict, "containerd", process, (CONTAINER, "containerd", 1), truth)
        wait("its end", lambda: "STOPPED" in run(*ctr, "task", "ls"))
        run(*ctr, "task", "rm", CONTAINER)
        run(*ctr, "container", "rm", CONTAINER)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def own_image(verdict, options, folder, truth):
    """The agent in a container, with the rights that docs/operations/install.md gives it."""
    context = folder / "own"
    context.mkdir()
    (context / "vramscope").write_bytes(pathlib.Path(options.static).read_bytes())
    run("buildah", "bud", "--isolation", "chroot", "-f", CONTRIB / "docker/Dockerfile", "-t", "vramscope", context)
    port, token = free_port(), folder / "token"
    token.write_text("5ecre7" * 6)
    token.chmod(0o600)
    name = podman("run", "-d", "--pid=host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--cap-add", "BPF", "--cap-add",
                  "PERFMON", "--cap-add", "SYS_PTRACE", "--cap-add", "DAC_READ_SEARCH", "--security-opt", "apparmor=unconfined",
                  "--security-opt", "no-new-privileges", "--security-opt", "seccomp=unconfined", *LIMITS, "--network", "host", "-v", "vramscope:/var/lib/vramscope",
                  "-v", f"{token}:/token:ro", "localhost/vramscope", "serve", "--listen", f"0.0.0.0:{port}", "--token-file", "/token")

    def get(path):
        return json.loads(fetch(f"{LOOPBACK}:{port}{path}", token.read_text()))
    try:
        wait("the agent in its container", lambda: fetch(f"{LOOPBACK}:{port}/readyz"))
        with_podman(verdict, "podman, seen by an agent in a container", get, truth)
        began = time.monotonic()
        podman("stop", "-t", "20", name)
        code = podman("inspect", "-f", "{{.State.ExitCode}}", name)
        verdict.look("podman stop ends the agent in good order", (code, time.monotonic() - began < 15), ("0", True))
    finally:
        subprocess.run(["podman", "logs", name], stderr=subprocess.STDOUT)
        podman("rm", "-f", name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--static")
    parser.add_argument("--root", default="/tmp/vramscope-bookworm")
    options = parser.parse_args()
    for program in ("podman", "buildah", "runc", "containerd"):
        print(f"     {run(program, '--version').splitlines()[0]}")
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        truth = folder / "truth"
        truth.mkdir()
        images(options, folder)
        host = Host("node-1", folder, options.vramscope, options.sim, "")
        try:
            with_podman(verdict, "podman", host.get, truth)
            with_pod(verdict, host.get, truth)
            with_containerd(verdict, host.get, folder, truth)
        finally:
            host.agent.kill()
        if options.static:
            own_image(verdict, options, folder, truth)
    verdict.end()


main()
