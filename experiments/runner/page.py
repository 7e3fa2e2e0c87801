"""Makes docs/internals/experiments.md of the result files."""
import glob
import json
import os
import re
import sys

from runner.machine import ROOT

RESULTS = os.path.join(ROOT, "experiments", "results")
PICTURES = os.path.join(ROOT, "docs", "images")

ABOUT = {
    "correctness": ("Allocations and frees", """\
A training loop allocates and frees on two threads and keeps a buffer now and then. Every allocation and every
free must be told, and at the end exactly what is still live, no more. On the simulated driver also: a program that
forgets one of three allocations, and one that asks a full device for more. On a GPU the loop trains a network with
PyTorch, gives its cache back every so often, and asks once for more than the device has."""),
    "processes": ("Many processes", """\
Four processes, one thread each, allocate between 2 and 10 MiB and forget every tenth allocation. One tracer tells
them apart. On a GPU they multiply matrices besides, so that libraries allocate memory that PyTorch does not know of."""),
    "threads": ("Many threads", """\
Five threads allocate up to 10 MiB or free a buffer at random, whoever made it. An allocation belongs to the thread
that made it until somebody frees it."""),
    "anomaly": ("An anomaly in one thread", """\
Four threads make equal allocations of 10 MiB and keep the last three. In its iteration 5, thread 0 allocates 2096 MiB
instead. The report has it first, with its thread."""),
    "stress": ("Stress", """\
A program makes events, allocations and frees of 2 KiB, at a steady rate. What the tracer takes meanwhile: CPU time of all
its threads, in percent of one core, and resident memory, looked at every 0.2 seconds. What the probes take in the traced
program is not in it; *Loops* has that. In the first moment the program's stacks are new, and get their names.
Nothing may be lost."""),
    "loops": ("Loops", """\
The worst case: programs that do nothing but launch an empty kernel, and nothing but allocate and free 2 KiB. By turns, without
and with a tracer; the median of the turns. `trace` does not probe launches; `kernels` probes both.
On the simulated driver a call takes some ten nanoseconds, so a ratio there says how a probe compares with next to nothing;
the nanoseconds that are added are the figure to look at."""),
}

HEAD = """\
# Experiments

<!-- made by `experiments/run --report`: change experiments/runner/page.py and the results, not this page -->

Each experiment runs a program under `vramscope` and compares the last report with what is known otherwise. On a GPU
that is PyTorch's own account of its memory; on the simulated driver it is what the driver wrote down
([docs/internals/simulator.md](simulator.md)). [docs/internals/verification.md](verification.md) compares with other tools and libraries.

```sh manual
sudo experiments/run --label my-machine
experiments/run --report
```

The first command takes some minutes, needs root, and finds out whether there is a GPU; the second writes this page of all
files in `experiments/results`, which also hold the programs' own words and the last reports. `experiments/run --help` tells the rest.

The commands under each case show what was run. For those with `workload`, build with `./dev build`, put `target/release` and
`target/release/sim` into `PATH`, and `target/release/sim` into `LD_LIBRARY_PATH`.
"""

HOW = """\
## How it is compared

| verdict | is |
|---|---|
| exact | every figure is the expected one, to the byte |
| within | so is every figure that can be known exactly, and the others are within their bounds: where calls of several threads overlap, nobody outside of the driver knows their order, and a peak can only be bounded |
| off | a figure differs; the row tells by how much |

**Simulated driver.** Each process's bytes, counts, peak and failures, the bytes of each thread, and address and size of each
live allocation, against the driver's own file.

**PyTorch with its caching allocator.** PyTorch takes *segments* from the driver and makes tensors of them. What the driver
sees is the segments, so vramscope's figures are compared with `memory_stats`: reserved bytes, their peak, segments,
`num_device_alloc`, `num_device_free`, and for failures `num_alloc_retries` + `num_ooms`. Libraries such as cuBLAS allocate
besides, unknown to PyTorch. They are left out twice, independently: by address (only what lies at the addresses that
`memory_snapshot` lists) and by call stack (only what `libc10_cuda.so` asked for). The peak is compared less what libraries
hold, which they allocate at the first product and keep.

**PyTorch without it** (`PYTORCH_NO_CUDA_MEMORY_CACHING=1`, option `--no-cache`). Each tensor is a call of the driver. The
program keeps its own account: bytes, counts, each thread's share, and a digest of every tensor's address and size.

The programs end without the interpreter's own end, which would free tensors after the account was told.
"""

_PROCESS = re.compile(r"process \d+: ")


def picture_of(name, label):
    return f"experiments-{name}-{label}.svg"


def _number(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " to ".join(_number(one) for one in value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mib(value):
    return f"{value / (1 << 20):.1f} MiB"


def _table(head, rows):
    cells = lambda row: "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    bars = ["---" if name in ("", "figure", "verdict", "loop", "traced by", "events") else "---:" for name in head]
    return "\n".join([cells(head), "|" + "|".join(bars) + "|", *(cells(row) for row in rows)]) + "\n"


def _verdict(row):
    if row["verdict"] != "off":
        return row["verdict"]
    return f"**off by {_number(row['off_by'])}**" if row["off_by"] else "**off**"


def _checks(case):
    """The rows of a case; those of many processes side by side."""
    rows = [row for row in case["checks"] if not _PROCESS.match(row["what"])]
    found = _table(("figure", "expected", "told", "verdict", ""),
                   [(row["what"], _number(row["expected"]), _number(row["told"]), _verdict(row), row["how"])
                    for row in rows])
    parts = {}
    for row in case["checks"]:
        number, _, what = row["what"].partition(": ")
        if _PROCESS.match(row["what"]):
            parts.setdefault(what, {})[number] = row
    if not parts:
        return found
    processes = sorted({number for row in parts.values() for number in row})
    side_by_side = [(what, *(_cell(row.get(number)) for number in processes)) for what, row in parts.items()]
    return found + "\n" + _table(("figure", *processes), side_by_side)


def _cell(row):
    if row is None:
        return "not told"
    if row["verdict"] == "exact":
        return f"{_number(row['told'])}, exact" + (f", {row['how']}" if row["how"].startswith("beside") else "")
    return f"{_number(row['told'])}, {_verdict(row)} (expected {_number(row['expected'])})"


def _cost(cases):
    rows = []
    for case in (case for case in cases if case.get("cost")):
        cost = case["cost"]
        rows.append((case["case"], _number(cost["events_per_second"]), f"{cost['cpu_percent']:.1f} %",
                     f"{cost['cpu_percent_first']:.1f} %", f"{cost['cpu_percent_max_later']:.1f} %",
                     f"{cost['cpu_us_per_event']:.2f} µs",
                     _mib(cost["resident_first"]), _mib(cost["resident_max"])))
    if not rows:
        return ""
    head = ("events", "made a second", "CPU", "first 0.2 s", "at most later", "CPU per event", "resident at first", "resident at most")
    return _table(head, rows)


def _loops(case):
    bare = {row["loop"]: row["median"] for row in case["loops"] if row["way"] == "not traced"}
    names = {"ns_per_launch": "a launch", "ns_per_pair": "cuMemAlloc + cuMemFree"}
    rows = [(names[row["loop"]], row["way"], _number(row["median"]), _number(row["median"] - bare[row["loop"]]),
             f"{row['ratio']:.2f}") for row in sorted(case["loops"], key=lambda row: row["loop"])]
    found = _table(("loop", "traced by", "ns", "added ns", "ratio"), rows)
    if case["disturbed"]:
        found += (f"\nAnother vramscope ran on this machine in {case['disturbed']} of {case['turns']} turns. Its probes are in the same "
                  "functions, so what is added here is too little, and what is not traced too much.\n")
    return found


def _case(case, mark):
    parts = [f"#### {case['case'][0].upper()}{case['case'][1:]}: {case['verdict']}\n"]
    if case["command"]:
        parts.append(f"```sh {mark}\nsudo {case['command']}\n```\n")
    if "loops" in case:
        parts.append(_loops(case))
    parts.append(_checks(case))
    if case.get("text"):
        parts.append(f"The last report, after the end:\n\n```text\n{case['text']}\n```\n")
    if case.get("live"):
        live = case["live"]
        parts.append(f"A report while it ran, of a run that is shorter:\n\n```sh {mark}\nsudo {live['command']}\n```\n")
        parts.append(f"```text\n{live['text']}\n```\n")
    if case.get("picture"):
        parts.append(f"Memory over time, by `vramscope plot run.arrows`:\n\n![Memory over time](../images/{case['picture']})\n")
    return "\n".join(parts)


def _off(result):
    """Why a verdict is not exact, in a sentence."""
    rows = [row for case in result["cases"] for row in case["checks"] if row["verdict"] == "off"]
    if rows:
        return f"off in {len(rows)} of {sum(len(case['checks']) for case in result['cases'])} figures"
    return result["verdict"]


def _result(result):
    mark = "manual" if result["driver"] == "simulated" else "gpu"
    parts = [f"### {result['experiment'].capitalize()} on {result['label']}: {_off(result)}\n"]
    cost = _cost(result["cases"])
    if cost:
        parts.append(cost)
    parts += [_case(case, mark) for case in result["cases"]]
    return "\n".join(parts)


def _machines(results):
    """Facts of each machine; those of its newest result, and versions from all."""
    machines = {}
    for result in results:
        machines.setdefault(result["label"], {}).update(result["machine"])
    parts = ["## Machines\n"]
    for label, facts in machines.items():
        parts.append(f"**{label}**\n")
        parts.append("\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n")
    return "\n".join(parts)


def _verdicts(results):
    labels = sorted({result["label"] for result in results})
    found = {(result["experiment"], result["label"]): _off(result) for result in results}
    rows = [(f"[{ABOUT[name][0]}](#{ABOUT[name][0].lower().replace(' ', '-')})",
             *(found.get((name, label), "not made") for label in labels)) for name in ABOUT]
    return "## Verdicts\n\n" + _table(("", *labels), rows)


def text(folder):
    """The page, of the results in a folder."""
    results = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as file:
            results.append(json.load(file))
    parts = [HEAD, _verdicts(results), HOW, _machines(results)]
    for name, (title, shows) in ABOUT.items():
        parts.append(f"## {title}\n\n{shows}\n")
        parts.append(f"```sh manual\nsudo experiments/run --driver simulated --only {name}\n```\n")
        parts.append(f"```sh gpu\nsudo experiments/run --driver real --only {name}\n```\n")
        parts += [_result(result) for result in results if result["experiment"] == name]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def write(page, folder):
    made = text(folder)
    if page == "-":
        sys.stdout.write(made)
        return
    with open(page, "w") as file:
        file.write(made)
