#!/usr/bin/env python3
"""Boots a virtual machine with a systemd of its own and runs the agent's unit in it, on the simulated driver.

usage: run.py --vramscope PATH --sim FOLDER [--suite trixie] [--root FOLDER] [--out FOLDER] [--drop-in FILE] [--qemu COMMAND]

Needs root, debootstrap, e2fsprogs and QEMU without KVM: 11.1 can emulate these kernels, under 7.2 they crash. `--root` is a Debian with systemd, a kernel and Python that
is used again; it is made where it is not there (400 MB). Prints what guest.py found; fails when anything is wrong.
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
    # The kernel's scripts want to know processes.
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, root],
                   check=True, stdout=subprocess.DEVNULL)


def image(options, folder):
    """A disk with the root, what is tried, and what tries it."""
    tree = folder / "tree"
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
        install.append((options.drop_in, "etc/systemd/system/vramscope.service.d/tried.conf", 0o644))
    for source, place, mode in install:
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tree / place)
        (tree / place).chmod(mode)
    (tree / "etc/systemd/system/verify.service").write_text(SERVICE)
    wants = tree / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "verify.service").unlink(missing_ok=True)
    (wants / "verify.service").symlink_to("../verify.service")
    disk = folder / "disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, disk, "3G"], check=True)
    shutil.rmtree(tree)
    return disk


def boot(options, disk, out):
    kernel = sorted(glob.glob(f"{options.root}/boot/vmlinuz-*"))[-1]
    initrd = kernel.replace("vmlinuz-", "initrd.img-")
    told = out / "told.txt"
    command = [*shlex.split(options.qemu), "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2G", "-nographic",
               "-no-reboot", "-kernel", kernel, "-initrd", initrd, "-append", "root=/dev/vda rw console=ttyS0 panic=-1",
               "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe", "-nic", "none",
               "-monitor", "none", "-serial", f"file:{out}/console.txt", "-serial", f"file:{told}"]
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=options.patience)
    return told.read_text(errors="replace")


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
    parser.add_argument("--patience", type=int, default=900)
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    options.root = options.root or str(out / options.suite)
    if not os.path.exists(f"{options.root}/etc/debian_version"):
        make_root(options.root, options.suite)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        told = boot(options, image(options, pathlib.Path(folder)), out)
    print(told, end="")
    if "wrong: 0\n" not in told:
        sys.exit(f"something is wrong; the machine's console is {out}/console.txt")


main()
