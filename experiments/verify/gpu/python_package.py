#!/usr/bin/env python3
"""Checks the Python package with PyTorch on a GPU: the wheel, installed by a user without privileges.

    python3 experiments/verify/gpu/python_package.py WHEEL [--user nobody] [--wheels DIR]

Compares measurements with PyTorch's own counters, runs the pytest plugin on a suite with one leaking test (also with
pytest-xdist, if it is installed), and asks a program what keeps its tensors alive. Prints one JSON object and exits with 1 if
anything differs. Needs root, PyTorch and pytest for the system's Python.
"""

import argparse
import json
import os
import pwd
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURE = """
import json, torch, vramscope

def keep(n):
    return torch.empty(n << 20, dtype=torch.uint8, device="cuda")

vramscope.start()
keep(1)
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
with vramscope.measure("block", collect_garbage=True) as block:
    temporary = keep(64)
    kept = keep(24)
    del temporary
result = block.result
print(json.dumps({
    "peak": result.tensors.peak_bytes, "torch_peak": torch.cuda.max_memory_allocated(),
    "before": result.tensors.before_bytes, "torch_before": before,
    "kept": result.kept_bytes, "expected_kept": 24 << 20, "exact": result.exact,
    "reserved_growth": result.live_after_bytes - result.live_before_bytes, "cached": result.cached_bytes,
    "line": result.kept[0].location,
}))
"""

SUITE = """
import pytest, torch

kept = []

def linear():
    return torch.nn.Linear(1024, 1024, device="cuda")(torch.ones(64, 1024, device="cuda")).sum()

@pytest.mark.gpu_leaks("1 MiB", warmup=2)
def test_clean():
    linear().backward()

@pytest.mark.gpu_leaks("1 MiB", warmup=2)
def test_leaks():
    kept.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))

@pytest.mark.gpu_peak("16 MiB")
def test_peak():
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
"""

KEEPER = """
import sys, torch, vramscope

history = {}
losses = []
weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)

def step(n):
    history[n] = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")

def graph():
    x = torch.ones(1024, 1024, device="cuda")
    losses.append(((weight * x) ** 2).sum())

for n in range(30):
    step(n)
    graph()

@vramscope.on_memory_pressure
def shrink():
    history.clear()
    torch.cuda.empty_cache()

print("ready", flush=True)
sys.stdin.read()
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--user", default="nobody")
    parser.add_argument("--wheels", type=Path, help="directory with wheels of pytest and pytest-xdist")
    options = parser.parse_args()
    user = pwd.getpwnam(options.user)
    results, failed = {}, []
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, user.pw_uid, user.pw_gid)
        os.chmod(directory, 0o755)
        wheel = shutil.copy(options.wheel, directory)
        environment = {**os.environ, "HOME": directory}
        environment.pop("PYTHONPATH", None)

        def start(command, **more):
            return subprocess.Popen(command, cwd=directory, env=environment, user=user.pw_uid, group=user.pw_gid,
                                    extra_groups=[], text=True, **more)

        def run(command):
            process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, err = process.communicate(timeout=300)
            return process.returncode, out, err

        def check(name, condition, detail):
            results[name] = detail
            if not condition:
                failed.append(name)

        for name, text in (("measure.py", MEASURE), ("test_suite.py", SUITE), ("keeper.py", KEEPER)):
            Path(directory, name).write_text(text)
        python, vramscope = f"{directory}/venv/bin/python", f"{directory}/venv/bin/vramscope"
        install = [python, "-m", "pip", "install", "--no-index", "--quiet"]
        wheels = ["--find-links", str(options.wheels.resolve()), "pytest", "pytest-xdist"] if options.wheels else []
        for command in ([sys.executable, "-m", "venv", "venv"], [*install, wheel], [*install, *wheels] if wheels else ["true"]):
            code, out, err = run(command)
            check(" ".join(command[:4]), code == 0, err[-500:])
        # Packages of this interpreter, which may itself be one of a virtual environment.
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        Path(directory, f"venv/lib/{version}/site-packages/parent.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        for prefix in ([], [vramscope, "run", "-q", "-o", "report.txt", "--force", "--"]):
            code, out, err = run([*prefix, python, "measure.py"])
            values = json.loads(out) if code == 0 else {"error": err[-2000:]}
            equal = code == 0 and all((
                values["peak"] == values["torch_peak"], values["before"] == values["torch_before"],
                values["kept"] == values["expected_kept"], values["exact"],
            ))
            check("run" if prefix else "own collector", equal, values)
        for more in ([], ["-n", "2"]):
            code, out, err = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--vramscope", *more, "test_suite.py"])
            expected = "2 failed, 1 passed" in out and "test_suite.py:15 test_leaks" in out
            check("pytest " + " ".join(more), expected or "unrecognized arguments: -n" in err, (out + err)[-3000:])
        program = start([vramscope, "run", "-q", "-o", "keeper.txt", "--", "sh", "-c", f"echo $$; exec {python} keeper.py"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pid = program.stdout.readline().strip()
        program.stdout.readline()
        for verb in ("why", "reclaim"):
            code, out, err = run([vramscope, verb, "-p", pid, "--json"])
            answer = json.loads(out) if out else {"error": err[-2000:]}
            if verb == "why":
                paths = json.dumps(answer)
                check("why", "__main__.history[*]" in paths and "grad_fn<SumBackward0>" in paths, answer)
            else:
                check("reclaim", answer.get("freed_bytes", 0) > 0, answer)
        program.stdin.close()
        program.wait(60)
    print(json.dumps({"failed": failed, **results}, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
