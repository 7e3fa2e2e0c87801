#!/usr/bin/env python3
"""Compares kernel launches counted by `vramscope kernels` with PyTorch's profiler.

usage: kernels.py --vramscope PATH [--out DIR]

Each program runs once, under both. The profiler lists the kernels that the GPU ran, by demangled name. Names are
compared without white space and number suffixes, which demanglers write differently.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def normalized(name):
    """Returns a kernel name in a form that is the same for all demanglers."""
    name = re.sub(r"\(unsigned (?:int|long|char|short)\)|\((?:int|long|bool|short|char)\)", "", name)
    name = name.replace("true", "1").replace("false", "0").replace("(anonymous namespace)", "anon")
    name = re.sub(r"(\d)(?:ul|u|l)\b", r"\1", name)
    name = re.sub(r"\bvoid\b|\bconst\b|\s", "", name)
    return re.sub(r"\{lambda.*", "{lambda", name)


def compare(vramscope, program, out):
    report = os.path.join(out, f"{program}.json")
    command = [vramscope, "kernels", "--json", "--top", "100000", "--force", "-o", report, "--",
               sys.executable, os.path.join(HERE, "programs", f"{program}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    counts = re.search(r"^COUNTS (.*)$", done.stdout + done.stderr, re.MULTILINE)
    if not counts:
        print(program, "FAILED", done.stdout[-500:], done.stderr[-1500:])
        return
    theirs, ours = collections.Counter(), collections.Counter()
    for name, count in json.loads(counts.group(1)).items():
        theirs[normalized(name)] += count
    last = json.loads(pathlib.Path(report).read_text().splitlines()[-1])
    names, unnamed = {}, 0
    for process in last["processes"]:
        for kernel in process["kernels"]:
            ours[normalized(kernel["full_name"])] += kernel["launches"]
            names[normalized(kernel["full_name"])] = kernel["name"]
            unnamed += kernel["launches"] if kernel.get("unnamed_reason") else 0
    same = sum(1 for name in theirs if ours[name] == theirs[name])
    print(f"\n## {program}: exact {last['exact']}; profiler {sum(theirs.values())} launches of {len(theirs)} kernels, "
          f"ours {sum(ours.values())} of {len(ours)}; {same} kernels with the same name and count; "
          f"{unnamed} launches without a name")
    for name, count in ours.most_common(8):
        print(f"| {names[name][:90]} | {theirs[name]} | {count} |")
    for name in sorted(set(ours) | set(theirs)):
        if ours[name] != theirs[name]:
            print(f"  differs: {name[:200]}: profiler {theirs[name]}, ours {ours[name]}")


def late(vramscope, out):
    """Attaches to a program that has been running for seconds."""
    program = subprocess.Popen([sys.executable, os.path.join(HERE, "programs", "step_torch.py"), "12"],
                              stdout=subprocess.PIPE, text=True)
    for line in program.stdout:
        if line.startswith("READY"):
            break
    time.sleep(3)
    report = os.path.join(out, "late.json")
    subprocess.run([vramscope, "kernels", "--json", "--force", "-o", report, "-p", str(program.pid), "--duration", "4s"],
                   capture_output=True, check=False)
    program.kill()
    process = json.loads(pathlib.Path(report).read_text().splitlines()[-1])["processes"][0]
    named = sum(k["launches"] for k in process["kernels"] if not k.get("unnamed_reason"))
    print(f"\n## late attach: {process['launches_total']} launches seen, {named} with a name")
    for kernel in process["kernels"][:6]:
        print(f"| {kernel['name'][:90]} | {kernel.get('name_source')} | {kernel['launches']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", default="verification")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    vramscope = os.path.abspath(options.vramscope)
    for program in ["kernels_torch", "kernels_triton", "kernels_jax", "kernels_cupy"]:
        compare(vramscope, program, options.out)
    late(vramscope, options.out)


if __name__ == "__main__":
    main()
