#!/usr/bin/env python3
"""Compares the memory of marked phases with the program's own figures.

usage: marks.py --vramscope PATH [--out DIR]

A PyTorch program marks three epochs and an evaluation in each with vramscope.mark() and vramscope.phase(), while `vramscope
record` traces it. It prints the driver memory that its allocator reserves at the end of each epoch, and the highest in it.
`vramscope report FILE marks` has to have the same values. Also prints what a mark costs the program. Exits with status 1 if a
value differs or a phase is missing.

Output: `| epoch | own peak | reported peak | own end | reported end | equal |`
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAM = """
import json, time
import torch, vramscope
torch.empty(1, device="cuda")
rows = []
kept = []
for epoch in range(3):
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    vramscope.mark(f"epoch {epoch}")
    kept.append(torch.empty((epoch + 1) * 300 << 20, dtype=torch.uint8, device="cuda"))
    with vramscope.phase(f"evaluation {epoch}"):
        large = torch.empty(1000 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        del large
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    rows.append((torch.cuda.max_memory_reserved(), torch.cuda.memory_reserved()))
    time.sleep(0.5)
vramscope.mark("end")
begin = time.perf_counter()
for _ in range(50):
    vramscope.mark("cost")
print("OWN", json.dumps({"rows": rows, "mark_seconds": (time.perf_counter() - begin) / 50}), flush=True)
time.sleep(1)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = options.out or pathlib.Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    program, recording = out / "marked.py", out / "marks.arrows"
    program.write_text(PROGRAM)
    package = pathlib.Path(__file__).resolve().parents[3] / "python"
    environment = {**os.environ, "PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}"}
    command = [options.vramscope, "record", "--force", "-o", str(recording), "--", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    own = [line for line in done.stdout.splitlines() if line.startswith("OWN ")]
    if not own:
        print(f"FAILED ({done.returncode})\n{done.stdout[-500:]}\n{done.stderr[-1500:]}")
        return 1
    own = json.loads(own[0][4:])
    report = subprocess.run([options.vramscope, "report", str(recording), "marks", "--json"], capture_output=True,
                            text=True, check=True)
    phases = json.loads(report.stdout)["phases"]
    (out / "marks.json").write_text(report.stdout)
    by_label = {phase["label"]: phase for phase in phases}
    passed = True
    print("| epoch | own peak | reported peak | own end | reported end | equal |")
    print("|---|---:|---:|---:|---:|---|")
    for epoch, (peak, end) in enumerate(own["rows"]):
        phase = by_label.get(f"epoch {epoch}", {"peak_bytes": -1, "end_bytes": -1})
        equal = (phase["peak_bytes"], phase["end_bytes"]) == (peak, end) and f"evaluation {epoch}" in by_label
        passed &= equal
        print(f"| {epoch} | {peak} | {phase['peak_bytes']} | {end} | {phase['end_bytes']} | {'yes' if equal else 'NO'} |")
    print(f"a mark takes {own['mark_seconds'] * 1e6:.0f} microseconds")
    picture = out / "marks.svg"
    subprocess.run([options.vramscope, "plot", str(recording), "-o", str(picture), "--force"], check=True)
    print(f"chart: {picture}; {time.strftime('%Y-%m-%d')}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
