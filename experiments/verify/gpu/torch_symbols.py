#!/usr/bin/env python3
"""Lists which builds of PyTorch report tensors to a function that can be probed: the table of
docs/guide/pytorch-live.md.

usage: torch_symbols.py FILE...

Each FILE is a libc10.so, with the libc10_cuda.so of the same build next to it and with the same prefix:
2.11.0-libc10.so and 2.11.0-libc10_cuda.so, or .../torch/lib/libc10.so. Needs nm and objdump.
"""
import os
import re
import subprocess
import sys

ALLOC_FREE = re.compile(r"_ZN3c1027reportMemoryUsageToProfilerEPv(lmm|lll)NS_6DeviceE$")
OOM = re.compile(r"_ZN3c1027reportOutOfMemoryToProfilerE(lmm|lll)NS_6DeviceE$")


def symbols(path):
    """Returns exported symbols with their addresses, and imported ones with None."""
    text = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words[-2] == "U":
            found[words[-1].split("@")[0]] = None
        elif words[-2] in "TW":
            found[words[-1].split("@")[0]] = int(words[0], 16)
    return found


def first_instructions(path, address):
    """Returns the instructions up to the first push, which the probe skips, and the offset of the probe."""
    command = ["objdump", "-d", "--no-show-raw-insn", f"--start-address={address}", f"--stop-address={address + 24}", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split("\t", 1) for line in text.splitlines() if re.match(r" +[0-9a-f]+:\t", line)]
    instructions = []
    for address_text, instruction in lines:
        instructions.append(" ".join(re.sub(r"[<#].*", "", instruction).split()))
        if instructions[-1].startswith("push"):
            return "; ".join(re.sub(r"0x[0-9a-f]+\(%rip\)", "…(%rip)", one) for one in instructions), int(address_text.strip(" :"), 16) - address
    return "no push", 0


def version(path):
    found = re.search(r"(\d+\.\d+(\.\d+)?)", os.path.basename(path))
    return found.group(1) if found else path


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("| PyTorch | Function for blocks | Imported by the cache | First instructions | Probe at |")
    print("|---|---|---|---|---|")
    for path in sorted(sys.argv[1:], key=lambda path: [int(part) for part in version(path).split(".")]):
        own = symbols(path)
        cache = symbols(re.sub(r"libc10\.so$", "libc10_cuda.so", path))
        alloc_free = [name for name in own if ALLOC_FREE.match(name) and own[name] is not None]
        oom = [name for name in own if OOM.match(name) and own[name] is not None]
        if not alloc_free:
            print(f"| {version(path)} | nothing known | | | |")
            continue
        code, offset = first_instructions(path, own[alloc_free[0]])
        imported = "both" if all(name in cache for name in alloc_free + oom) else "not all"
        print(f"| {version(path)} | `…EPv{ALLOC_FREE.match(alloc_free[0]).group(1)}…` | {imported} | `{code}` | +{offset} |")


if __name__ == "__main__":
    main()
