"""Random programs, failures and options of the tracer; every choice is the dice's."""
import os
import re
import sys

from bench.place import ROOT

HERE = os.path.dirname(os.path.abspath(__file__))

PARTS = ["pitched", "managed", "pinned", "registered", "async", "pool", "physical", "mapped", "array", "mipmapped",
         "external", "context", "graph", "capture", "share", "multicast", "green"]
CODES = [1, 2, 3, 100, 201, 400, 700, 709, 900, 908, 999]

# Short ones, as they come and go in a storm; those that begin others or become others are among them.
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
    """The functions that are traced."""
    with open(os.path.join(ROOT, "docs/reference/coverage.md")) as file:
        return re.findall(r"^\| `(cu\w+)` \|", file.read(), re.MULTILINE)


def failing(dice):
    """Functions that fail now and then, as `SIM_INJECT_FAILURES` wants them."""
    # Without these no program does anything.
    names = [name for name in functions() if name not in ("cuInit", "cuGetProcAddress_v2")]
    chosen = dice.sample(names, dice.randint(1, 40))
    return ",".join(f"{name}:every{dice.choice([2, 3, 5, 7, 20, 50])}={dice.choice(CODES)}" for name in chosen)


def random_program(dice, most=5000):
    """A random program over the whole API; whether it has one thread."""
    threads = dice.choice([1, 1, 1, 2, 3, 8])
    program = ["--seed", dice.randrange(1 << 31), "random", "--ops", dice.randint(100, most), "--threads", threads,
               "--devices", dice.choice([1, 2, 2])]
    if dice.randrange(3) == 0:
        program += ["--only", ",".join(dice.sample(PARTS, dice.randint(1, 4)))]
    if dice.randrange(4) == 0:
        program.append("--no-illegal")
    return program, threads == 1


def contexts_program(dice):
    """Deep stacks of contexts."""
    threads = dice.choice([1, 1, 2])
    execs = dice.choice([0, 0, 0, 1, 3])
    arguments = [dice.randrange(1 << 31), dice.randint(100, 1500), dice.choice([4, 7, 8, 9, 16, 40, 200]), threads, execs]
    return [sys.executable, os.path.join(HERE, "contexts.py"), *arguments], threads == 1


def options(dice, directory):
    """Options of a trace, and the recording that it writes, if it does."""
    chosen = ["--top", 1000000, "--interval", dice.choice(["50ms", "100ms", "300ms", "2s"]),
              "--stacks", dice.choice(["full", "full", "off", "fp"])]
    if dice.randrange(3) == 0:
        # Those with a link for each function take long to detach.
        chosen += ["--attach-mode", dice.choice(["session", "multi"] * 6 + ["single", "single-no-cookie"])]
    if dice.randrange(8) == 0:
        chosen += ["--ring-size", dice.choice([4096, 65536, 1 << 20])]
    if dice.randrange(3) == 0:
        chosen.append(dice.choice(["--torch", "--torch=totals"]))
    if dice.randrange(2) == 0:
        chosen += ["--kernels", "--check-launches", dice.choice(["sampled", "all"])]
    recording = os.path.join(directory, "run.arrows") if dice.randrange(2) else None
    return chosen + (["--record", recording] if recording else []), recording
