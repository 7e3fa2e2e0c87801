#!/usr/bin/env python3
"""Boots virtual machines with the kernels that GPU hosts run, and checks vramscope in each: guest.py has the checks.

usage: run.py --binaries DIR [--arch arm64 --cc COMPILER] [--kernels 5.15,6.8] [--hardened-only] [--out DIR] [--results FILE]
       run.py --report [--results FILE]

DIR has vramscope, libvramscope_inject.so and the simulated driver in sim/, as `./dev build` makes it in target/release. COMPILER compiles C for the guest. Kernels
are the newest of their series in the packages of Debian and Ubuntu; the environment variables DEBIAN_MIRROR and UBUNTU_MIRROR
name the mirrors (http://HOST/debian/). Results are added to FILE; --report writes them to the table
in docs/operations/install.md. Needs root, debootstrap, curl and cpio. QEMU is used without KVM; an older one than 10, which does
not emulate all of these kernels, is replaced by that of a newer Debian, below --out.
"""
import argparse
import gzip
import io
import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[2]
PAGE = TOP / "docs/operations/install.md"
POOLS = TOP / "crates/app/tests/fixtures/allocators"
POOL_LIBRARIES = ["cupy/cuda/memory.cpython-312.so", "xla_cuda_plugin.so"]
DEBIAN = os.environ.get("DEBIAN_MIRROR", "")
UBUNTU = os.environ.get("UBUNTU_MIRROR", "")
# Kernel series and the suite that has it.
SUITES = {
    "5.10": (DEBIAN, "bullseye"), "5.15": (UBUNTU, "jammy-updates"), "5.19": (UBUNTU, "jammy-updates"),
    "6.1": (DEBIAN, "bookworm"), "6.5": (UBUNTU, "jammy-updates"), "6.8": (UBUNTU, "noble-updates"),
    "6.11": (UBUNTU, "noble-updates"), "6.12": (DEBIAN, "trixie"), "6.14": (UBUNTU, "noble-updates"),
    "6.17": (UBUNTU, "noble-updates"), "6.18": (DEBIAN, "trixie-backports"), "7.0": (DEBIAN, "trixie-backports"),
    "7.2": (DEBIAN, "trixie-backports"),
}
MIN_PACKAGE_BYTES = 1_000_000
GUEST_SUITE = "bookworm"
QEMU = "qemu-system-x86_64"
QEMU_SUITE = "trixie"
MIN_QEMU_VERSION = 10
GUEST_PACKAGES = "apparmor,python3,libelf1,zlib1g,procps"
INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /sys/fs/cgroup
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs security /sys/kernel/security
exec python3 /opt/guest.py
"""
# By architecture: prefix of `strip`, machine, console, whether the machine has a second serial port.
MACHINES = {
    "amd64": ("", ["-cpu", "max"], "ttyS0", True),
    "arm64": ("aarch64-linux-gnu-", ["-machine", "virt", "-cpu", "max,pauth-impdef=on"], "ttyAMA0", False),
}
MODES = ["session", "multi", "single"]
COLUMNS = ["native stacks", "Python stacks", "kernel launches", "allocators", "kill -9 of the tracer"]


def version(text):
    return [int(part) for part in re.findall(r"\d+", text)]


def fetch(url):
    return subprocess.run(["curl", "--silent", "--fail", "--retry", "3", url], check=True, capture_output=True).stdout


def index(base, suite, arch):
    if not base:
        sys.exit(f"{suite}: set DEBIAN_MIRROR and UBUNTU_MIRROR")
    if base == DEBIAN:
        return lzma.decompress(fetch(f"{base}dists/{suite}/main/binary-{arch}/Packages.xz")).decode()
    return gzip.decompress(fetch(f"{base}dists/{suite}/main/binary-{arch}/Packages.gz")).decode()


def kernel(series, directory, arch):
    """Returns the newest kernel image of a series, downloaded once."""
    found = sorted(directory.glob(f"vmlinuz-{series}[.-]*"))
    if found:
        return found[-1]
    base, suite = SUITES[series]
    flavor = rf"\S*-cloud-{arch}" if base == DEBIAN else r"\.0-\d+-generic"
    newest = ([], "")
    for paragraph in index(base, suite, arch).split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", paragraph, re.MULTILINE))
        # From 7.0 on, Debian's package `linux-image` is empty and depends on `linux-binary`.
        name = re.fullmatch(rf"linux-(image|binary)-{re.escape(series)}{flavor}", fields.get("Package", ""))
        if name and int(fields["Size"]) > MIN_PACKAGE_BYTES:
            newest = max(newest, (version(fields["Version"]), fields["Filename"]))
    if not newest[1]:
        sys.exit(f"{suite} has no kernel {series}")
    package = directory / "kernel.deb"
    package.write_bytes(fetch(base + newest[1]))
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    package.unlink()
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        # boot/vmlinuz-RELEASE; from 7.1 on usr/lib/modules/RELEASE/vmlinuz
        member = next(one for one in archive if re.search("/vmlinuz(-|$)", one.name))
        release = member.name.split("/vmlinuz-")[1] if "/vmlinuz-" in member.name else member.name.split("/")[-2]
        image = directory / f"vmlinuz-{release}"
        image.write_bytes(archive.extractfile(member).read())
    return image


def debootstrap(suite, packages, root, arch="amd64"):
    """Makes a root file system, once. This machine cannot run programs of another processor: they are unpacked, not configured."""
    if not (root / "etc/debian_version").exists():
        foreign = [] if arch == "amd64" else ["--foreign", f"--arch={arch}"]
        subprocess.run(["debootstrap", "--variant=minbase", *foreign, f"--include={packages}", suite, root, *([DEBIAN] if DEBIAN else [])],
                       check=True, stdout=subprocess.DEVNULL)
        for package in (root / "var/cache/apt/archives").glob("*.deb") if foreign else []:
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)


def qemu(out):
    """Returns the command that starts QEMU: the installed one if it is new enough."""
    if shutil.which(QEMU):
        installed = subprocess.run([QEMU, "--version"], check=True, capture_output=True, text=True).stdout
        if version(installed)[0] >= MIN_QEMU_VERSION:
            return [QEMU]
    root = out / "qemu"
    debootstrap(QEMU_SUITE, "qemu-system-x86,seabios", root)
    loader = [root / "lib64/ld-linux-x86-64.so.2", "--library-path", root / "usr/lib/x86_64-linux-gnu"]
    return [*loader, root / "usr/bin" / QEMU, "-L", root / "usr/share/seabios", "-L", root / "usr/share/qemu"]


def make_initrd(options, out):
    """Creates an initial RAM disk with the whole guest, so that kernels need no modules and no disk."""
    root = out / "root"
    debootstrap(GUEST_SUITE, GUEST_PACKAGES, root, options.arch)
    binaries = pathlib.Path(options.binaries)
    files = [(binaries / "vramscope", "usr/bin/vramscope"), (binaries / "libvramscope_inject.so", "usr/bin/libvramscope_inject.so"),
             (HERE / "guest.py", "opt/guest.py"), (TOP / "experiments/lib/oracle.py", "opt/oracle.py"),
             (POOLS / "pools.py", "opt/pools/pools.py")]
    files += [(path, f"opt/sim/{path.name}") for path in (binaries / "sim").iterdir() if path.is_file()]
    for source, target in files:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / target)
        (root / target).chmod(0o755)
    subprocess.run([MACHINES[options.arch][0] + "strip", "--strip-debug", root / "usr/bin/vramscope"], check=True)
    for name in POOL_LIBRARIES:
        library = root / "opt/pools" / name
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([options.cc, "-shared", "-fPIC", "-O2", "-o", library, POOLS / "pools.c"], check=True)
    for directory in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache", "var/lib/apt"):
        shutil.rmtree(root / directory, ignore_errors=True)
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    initrd = out / "initrd"
    with initrd.open("wb") as file:
        find = subprocess.Popen(["find", ".", "-xdev", "-not", "-path", "./proc/*"], cwd=root, stdout=subprocess.PIPE)
        subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], cwd=root, stdin=find.stdout, stdout=file, check=True)
    return initrd


def boot(options, image, initrd, out):
    checks = out / "checks.txt"
    checks.unlink(missing_ok=True)
    _, machine, console, has_second_port = MACHINES[options.arch]
    ports = [out / "console.txt", checks] if has_second_port else [checks]
    checked = " vramscope_checks=hardened" * options.hardened_only
    command = [*options.qemu, *machine, "-accel", "tcg", "-smp", "2", "-m", "3G", "-nographic", "-no-reboot", "-kernel", image, "-initrd", initrd,
               "-append", f"console={console} panic=-1 rdinit=/init quiet{checked}", "-nic", "none", "-monitor", "none"]
    command += [word for port in ports for word in ("-serial", f"file:{port}")]
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=options.timeout, check=False)
    text = checks.read_text(errors="replace") if checks.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def show(series, rows):
    """Prints the checks that failed. Returns whether all worked."""
    # An attach mode that this kernel does not have is not a failure.
    bad = [row for row in rows if not row["works"] and row["capability"] != "attach mode" and not expected(series, row)]
    for row in bad:
        print(f"  WRONG {row['capability']} {row['mode'] or ''}: {row['found']}")
    finished = any(row["capability"] == "done" for row in rows)
    if not finished:
        print("  the machine did not finish its checks")
    return finished and not bad


def expected(series, row):
    """Python stacks need Linux 5.17."""
    return row["capability"] == "Python stacks" and version(series) < [5, 17]


def table(results):
    lines = ["| kernel | attach modes | exact ledger | native stacks | Python stacks | launches | allocators | tracer killed | agent | `run` | hardened |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for series in sorted(results, key=version):
        rows = results[series]
        works = {(row["capability"], row["mode"]): row["works"] for row in rows}
        release = next(row["found"] for row in rows if row["capability"] == "kernel")
        modes = [mode for mode in MODES if works.get(("attach mode", mode))]

        def cell(capability, modes=modes, works=works):
            good = [mode for mode in modes if works.get((capability, mode))]
            if modes and not any((capability, mode) in works for mode in modes):
                return "not run"
            return "no" if not good else "yes" if good == modes else ", ".join(f"`{mode}`" for mode in good)

        cells = [cell(one) for one in ["exact ledger", *COLUMNS]]
        cells += ["yes" if works.get((one, None)) else "no" for one in ("agent", "run (in-process)")]
        hardened = [row["works"] for row in rows if row["capability"].startswith("hardened: ")]
        cells.append("yes" if hardened and all(hardened) else "no")
        lines.append(f"| {release} | {', '.join(f'`{mode}`' for mode in modes) or 'none'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_report(results):
    page = PAGE.read_text()
    head, rest = page.split("<!-- kernels -->\n")
    tail = rest.split("<!-- end -->", 1)[1]
    PAGE.write_text(f"{head}<!-- kernels -->\n{table(results)}<!-- end -->{tail}")


def read_results(file):
    return json.loads(file.read_text()) if file.exists() else {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binaries")
    parser.add_argument("--arch", default="amd64", choices=MACHINES)
    parser.add_argument("--cc", default="cc", help="C compiler for the guest [default: %(default)s]")
    parser.add_argument("--kernels", default=",".join(SUITES))
    parser.add_argument("--out", default="/tmp/vramscope-kernels")
    parser.add_argument("--results", default=TOP / "experiments/results/kernels/results.json")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds per kernel")
    parser.add_argument("--hardened-only", action="store_true", help="only the checks of security settings")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    file = pathlib.Path(options.results)
    if options.report:
        write_report(read_results(file))
        return
    out = pathlib.Path(options.out)
    (out / "kernels").mkdir(parents=True, exist_ok=True)
    initrd = make_initrd(options, out)
    options.qemu = qemu(out) if options.arch == "amd64" else ["qemu-system-aarch64"]
    failed = []
    for series in options.kernels.split(","):
        image = kernel(series, out / "kernels", options.arch)
        print(f"{image.name.removeprefix('vmlinuz-')}", flush=True)
        # On a busy host an emulated machine sometimes ends before its first check.
        rows = boot(options, image, initrd, out) or boot(options, image, initrd, out)
        if not show(series, rows):
            failed.append(series)
        if rows:
            # Messages of failed checks stay in the results; those of others do not matter.
            keep = [row if not row["works"] or row["capability"] == "kernel" else {**row, "found": ""} for row in rows]
            key = series if options.arch == "amd64" else f"{series} {options.arch}"
            new = {(row["capability"], row["mode"]) for row in keep}
            # Another run, for the other processor, may have added results.
            results = read_results(file)
            old = results.get(key, []) if options.hardened_only else []
            results[key] = [row for row in old if (row["capability"], row["mode"]) not in new] + keep
            file.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        sys.exit(f"failed on {', '.join(failed)}; the console of the last machine is in {out}/console.txt")


main()
