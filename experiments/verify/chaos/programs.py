"""Random programs, injected failures and options of the tracer."""
import os
import re
import sys

from lib.paths import ROOT

HERE = os.path.dirname(os.path.abspath(__file__))

AREAS = ["pitched", "managed", "pinned", "registered", "async", "pool", "physical", "mapped", "array", "mipmapped",
         "external", "context", "graph", "capture", "share", "multicast", "green"]
CODES = [1, 2, 3, 100, 201, 400, 700, 709, 900, 908, 999]

# Short programs; some of them fork or exec.
SHORT = [["kinds"], ["fork"], ["exec"], ["ipc"], ["contexts"],
         ["leak3", "--work-ms", "5", "--wait-ms", "5"],
         ["hold", "--count", "200", "--size", "4096"],
         ["oom", "--chunk-mb", "700", "--wait-ms", "1"],
         ["spam", "--throughput", "max", "--count", "3000", "--free-ratio", "0.8"],
         ["train", "--steps", "10", "--step-ms", "1", "--keep-every", "3"],
         ["threads", "--threads", "4", "--duration", "0.1"],
         ["stressor", "--procs", "3", "--duration", "0.2", "--sleep-ms", "1"],
         ["objects", "--count", "6", "--leak", "0.3", "--in-context", "--fork"],
         ["objects", "--count", "6", "--leak", "0.3", "--exec"],
         ["launches", "--iterations", "50", "--threads", "2", "--graphs", "3", "--reloads", "2"],
         ["copies", "--iterations", "1"],
         ["torch-leak", "--steps", "10", "--refuse"],
         ["dlopen-late", "--delay-ms", "20", "--work-ms", "5", "--wait-ms", "5"]]


def functions():
    """Returns the traced functions."""
    with open(os.path.join(ROOT, "docs/reference/coverage.md")) as file:
        return re.findall(r"^\| `(cu\w+)` \|", file.read(), re.MULTILINE)


def injected_failures(rng):
    """Returns functions that fail occasionally, in the syntax of `SIM_INJECT_FAILURES`."""
    # Every program needs these.
    names = [name for name in functions() if name not in ("cuInit", "cuGetProcAddress_v2")]
    chosen = rng.sample(names, rng.randint(1, 40))
    return ",".join(f"{name}:every{rng.choice([2, 3, 5, 7, 20, 50])}={rng.choice(CODES)}" for name in chosen)


def random_program(rng, most=5000):
    """Returns a random program over the whole API, and whether it has one thread."""
    threads = rng.choice([1, 1, 1, 2, 3, 8])
    program = ["--seed", rng.randrange(1 << 31), "random", "--ops", rng.randint(100, most), "--threads", threads,
               "--devices", rng.choice([1, 2, 2])]
    if rng.randrange(3) == 0:
        program += ["--only", ",".join(rng.sample(AREAS, rng.randint(1, 4)))]
    if rng.randrange(4) == 0:
        program.append("--no-illegal")
    return program, threads == 1


def contexts_program(rng):
    """Returns a program with deep context stacks, and whether it has one thread."""
    threads = rng.choice([1, 1, 2])
    execs = rng.choice([0, 0, 0, 1, 3])
    arguments = [rng.randrange(1 << 31), rng.randint(100, 1500), rng.choice([4, 7, 8, 9, 16, 40, 200]), threads, execs]
    return [sys.executable, os.path.join(HERE, "contexts.py"), *arguments], threads == 1


def trace_options(rng, directory):
    """Returns options of a trace, and the path of its recording or None."""
    options = ["--top", 1000000, "--interval", rng.choice(["50ms", "100ms", "300ms", "2s"]),
              "--stacks", rng.choice(["full", "full", "off", "fp"])]
    if rng.randrange(3) == 0:
        # Modes with one link per function take long to detach.
        options += ["--attach-mode", rng.choice(["session", "multi"] * 6 + ["single"])]
    if rng.randrange(8) == 0:
        options += ["--ring-size", rng.choice([4096, 65536, 1 << 20])]
    if rng.randrange(3) == 0:
        options.append(rng.choice(["--allocators", "--allocators=totals"]))
    if rng.randrange(2) == 0:
        options += ["--kernels", "--check-launches", rng.choice(["sampled", "all"])]
    recording = os.path.join(directory, "run.arrows") if rng.randrange(2) else None
    return options + (["--record", recording] if recording else []), recording
