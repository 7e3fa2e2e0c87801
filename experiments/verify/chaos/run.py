#!/usr/bin/env python3
"""Runs rounds of random programs, options and accidents, and compares every final report with the oracle.

usage: run.py [--minutes 10] [--seed N …] [--kind KIND] [--keep DIRECTORY]

command  a random program under `trace -- COMMAND`, with failing calls of any function, and deep context stacks
attach   programs that are already running
storm    many short processes under a trace of every process; some are killed, fork, or exec another program
reuse    processes with the same process id
kill     the tracer is killed with SIGKILL under load; its recording must be readable up to there
stop     the tracer is stopped with SIGSTOP under load, so that records are lost
faults   one to three of these happen to the tracer at random moments of a load: `disk` full, `nvml` that fails or is slow,
         steps of the `clock`, a `thread` that panics, a `pause` with SIGSTOP, errors of `read`, system calls that are
         interrupted (`eintr`), and failed `allocation` of maps, rings and files; each is also a kind of its own

If a process is `exact`, every value must equal the oracle; otherwise the oracle must be within the bounds, and received
and lost calls must add up to it. A replayed recording must have the same last report. A tracer that cannot go on must
say why and exit with 2; no program may notice.

Each round prints its seed; `--seed N …` repeats such rounds, except for the timing of threads. The command lines, the
report and the oracle of a failed round are kept. At most one core is used on average. Needs root and the simulated
driver, no GPU. Exits with 1 if a round failed.
"""
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

from lib.paths import ROOT, Setup, argument_parser
from lib.processes import kill_children_at_exit
from rounds import KINDS, Round


def copy_binaries(setup, directory):
    """Copies the tracer and the simulated driver, so that a build or the probes of other tests do not interfere."""
    own = os.path.join(directory, "sim")
    shutil.copytree(os.path.dirname(setup.driver_file), own)
    setup.driver_file, setup.workload = os.path.join(own, "libcuda.so.1"), os.path.join(own, "workload")
    setup.vramscope = shutil.copy2(setup.vramscope, directory)


def keep(round_, directory, kept):
    """Copies the files of a failed round and returns their directory."""
    target = os.path.join(kept, f"{round_.kind}-{round_.seed}")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, ignore=shutil.ignore_patterns("sim"))
    with open(os.path.join(target, "problems"), "w") as file:
        file.write("\n".join([f"run.py --seed {round_.seed}", *round_.lines, "", *round_.problems, ""]))
    return target


def one_round(setup, seed, kind, kept):
    """Runs a round and returns it; its problems are in the round."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        round_ = Round(setup, seed, kind, directory)
        try:
            round_.run()
        except Exception as error:  # noqa: BLE001 - a failing round is a result, too
            round_.problems.append(f"{type(error).__name__}: {error}")
            round_.lines.append(traceback.format_exc())
        if round_.problems:
            round_.kept = keep(round_, directory, kept)
    return round_


def throttle(began, used):
    """Waits if children used more than one core on average."""
    now = os.times()
    took = sum(now[:4]) - used
    time.sleep(max(0.0, min(took - (time.monotonic() - began), 60.0)))


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, nargs="+", default=[], help="repeat the rounds with these seeds")
    parser.add_argument("--kind", choices=sorted(KINDS), help="rounds of this kind only")
    parser.add_argument("--rounds", type=int, default=0, help="stop after this many rounds")
    parser.add_argument("--keep", default=os.path.join(ROOT, "target/chaos"), help="directory for the files of failed rounds")
    options = parser.parse_args()
    kill_children_at_exit()
    setup = Setup(options)
    if not setup.simulated:
        raise SystemExit("chaos requires the simulated driver, which writes the oracle")
    rounds = options.rounds or len(options.seed)
    until, count, wrong, compared, inexact = time.monotonic() + options.minutes * 60, 0, [], 0, 0
    with tempfile.TemporaryDirectory(prefix="chaos-sim-") as directory:
        copy_binaries(setup, directory)
        while count < rounds if rounds else time.monotonic() < until:
            seed = options.seed[count % len(options.seed)] if options.seed else random.SystemRandom().randrange(1 << 31)
            began, used = time.monotonic(), sum(os.times()[:4])
            round_ = one_round(setup, seed, options.kind, options.keep)
            count, compared, inexact = count + 1, compared + round_.compared, inexact + round_.inexact
            print(f"{'WRONG' if round_.problems else 'ok':5} --seed {seed:<10} {round_.kind:7} {time.monotonic() - began:5.1f} s, "
                  f"{round_.compared} processes, {round_.inexact} not exact: {round_.description}", flush=True)
            for problem in round_.problems[:12]:
                print(f"      {problem[:400]}", flush=True)
            if round_.problems:
                wrong.append(round_.seed)
                print(f"      kept in {round_.kept}", flush=True)
            throttle(began, used)
    print(json.dumps({"rounds": count, "wrong": wrong, "compared": compared, "not_exact": inexact}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
