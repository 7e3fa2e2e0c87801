#!/usr/bin/env python3
"""Boots a virtual machine with its own systemd and checks the agent's unit in it, on the simulated driver.

usage: run.py --vramscope PATH --sim DIR [--suite trixie] [--root DIR] [--out DIR] [--drop-in FILE] [--qemu COMMAND]

Needs root, debootstrap, e2fsprogs and QEMU, which is used without KVM: QEMU 11.1 can emulate these kernels, with 7.2 they
crash. `--root` is a Debian root file system with systemd, a kernel and Python; it is created if it does not exist (400 MB).
Prints the checks of guest.py, and fails if one of them does.
"""
import argparse
import glob
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CONTRIB = HERE.parents[2] / "contrib" / "systemd"
PACKAGES = "systemd,systemd-sysv,dbus,udev,kmod,procps,passwd,python3,libelf1,zlib1g,initramfs-tools,linux-image-cloud-amd64"
SERVICE = """[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /opt/guest.py
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
"""


def make_root(root, suite):
    packages = PACKAGES.replace("libelf1,", "libelf1t64," if suite not in ("bookworm",) else "libelf1,")
    # The install scripts of the kernel need procps.
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, root],
                   check=True, stdout=subprocess.DEVNULL)


def image(options, directory):
    """Creates a disk image with the root file system, the agent, the simulated driver and guest.py."""
    tree = directory / "tree"
    subprocess.run(["cp", "-a", options.root, tree], check=True)
    install = [
        (options.vramscope, "usr/local/bin/vramscope", 0o755),
        (CONTRIB / "vramscope.service", "etc/systemd/system/vramscope.service", 0o644),
        (CONTRIB / "vramscope.toml", "etc/vramscope/vramscope.toml", 0o644),
        (options.guest, "opt/guest.py", 0o755),
    ]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "workload"):
        install.append((pathlib.Path(options.sim) / name, f"opt/sim/{name}", 0o755))
    if options.drop_in:
        install.append((options.drop_in, "etc/systemd/system/vramscope.service.d/verify.conf", 0o644))
    for source, target, mode in install:
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tree / target)
        (tree / target).chmod(mode)
    (tree / "etc/systemd/system/verify.service").write_text(SERVICE)
    wants = tree / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "verify.service").unlink(missing_ok=True)
    (wants / "verify.service").symlink_to("../verify.service")
    disk = directory / "disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, disk, "3G"], check=True)
    shutil.rmtree(tree)
    return disk


def boot(options, disk, out):
    kernel = max(glob.glob(f"{options.root}/boot/vmlinuz-*"))
    initrd = kernel.replace("vmlinuz-", "initrd.img-")
    checks = out / "checks.txt"
    command = [*shlex.split(options.qemu), "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2G", "-nographic",
               "-no-reboot", "-kernel", kernel, "-initrd", initrd, "-append", "root=/dev/vda rw console=ttyS0 panic=-1",
               "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe", "-nic", "none",
               "-monitor", "none", "-serial", f"file:{out}/console.txt", "-serial", f"file:{checks}"]
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=options.timeout, check=False)
    return checks.read_text(errors="replace")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--suite", default="trixie")
    parser.add_argument("--root")
    parser.add_argument("--out", default="/tmp/vramscope-systemd")
    parser.add_argument("--guest", default=HERE / "guest.py")
    parser.add_argument("--drop-in")
    parser.add_argument("--qemu", default="qemu-system-x86_64")
    parser.add_argument("--timeout", type=int, default=900)
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    options.root = options.root or str(out / options.suite)
    if not os.path.exists(f"{options.root}/etc/debian_version"):
        make_root(options.root, options.suite)
    with tempfile.TemporaryDirectory(dir=out) as directory:
        checks = boot(options, image(options, pathlib.Path(directory)), out)
    print(checks, end="")
    if "wrong: 0\n" not in checks:
        sys.exit(f"a check failed; the console of the machine is in {out}/console.txt")


main()
