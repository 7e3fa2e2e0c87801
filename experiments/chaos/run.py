#!/usr/bin/env python3
"""Chaos: random programs, options and accidents, round after round; every last report is compared with what the
simulated driver wrote down.

usage: run.py [--minutes 10] [--seed N] [--kind KIND] [--keep DIRECTORY]

command  a random program under `trace -- COMMAND`, with calls of any function that fail, and deep stacks of contexts
attach   programs that run already
storm    many short processes under a trace of every process; some are killed, fork, or become another program
reuse    the same process id, again and again
kill     the tracer is killed with SIGKILL in the middle of a load; a recording is read up to there
stop     the tracer is stopped with SIGSTOP under load, so that records are lost

Where a report says `exact`, every figure must be the truth; where it does not, the truth must be within the bounds,
and what was received and what was lost must add up to it. A recording must give the last report again.

Each round prints its seed; `--seed N` repeats that round. What threads do at the same time differs all the same. Of a
round that went wrong the command lines, the report and the accounts are kept. At most one core is used on average.
Needs root and the simulated driver, no GPU. Exits with 1 where something was wrong.
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
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "soak")]

from rounds import KINDS, Round  # noqa: E402

from bench.place import ROOT, Place, options  # noqa: E402
from bench.processes import end_well  # noqa: E402


def copy_of(place, directory):
    """The tracer and the simulated driver under names of their own: a build may go on meanwhile, and probes of other
    tests are not on this driver."""
    own = os.path.join(directory, "sim")
    shutil.copytree(os.path.dirname(place.driver_file), own)
    place.driver_file, place.workload = os.path.join(own, "libcuda.so.1"), os.path.join(own, "workload")
    place.vramscope = shutil.copy2(place.vramscope, directory)


def keep(found, directory, kept):
    """What went wrong, with all that helps to see why."""
    target = os.path.join(kept, f"{found.kind}-{found.seed}")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, ignore=shutil.ignore_patterns("sim"))
    with open(os.path.join(target, "problems"), "w") as file:
        file.write("\n".join([f"run.py --seed {found.seed}", *found.lines, "", *found.problems, ""]))
    return target


def one_round(place, seed, kind, kept):
    """Runs one; the round, which knows its problems."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        found = Round(place, seed, kind, directory)
        try:
            found.run()
        except Exception as error:  # noqa: BLE001
            found.problems.append(f"{type(error).__name__}: {error}")
            found.lines.append(traceback.format_exc())
        if found.problems:
            found.kept = keep(found, directory, kept)
    return found


def rest(began, used):
    """At most one core on average: waits where children took more."""
    now = os.times()
    took = sum(now[:4]) - used
    time.sleep(max(0.0, min(took - (time.monotonic() - began), 60.0)))


def main():
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="repeat the round of this seed")
    parser.add_argument("--kind", choices=sorted(KINDS), help="rounds of this kind only")
    parser.add_argument("--rounds", type=int, default=0, help="end after this many")
    parser.add_argument("--keep", default=os.path.join(ROOT, "target/chaos"), help="where rounds that went wrong are kept")
    chosen = parser.parse_args()
    end_well()
    place = Place(chosen)
    if not place.simulated:
        raise SystemExit("chaos needs the simulated driver: it writes down the truth")
    rounds = chosen.rounds or (1 if chosen.seed is not None else 0)
    until, count, wrong, compared, inexact = time.monotonic() + chosen.minutes * 60, 0, [], 0, 0
    with tempfile.TemporaryDirectory(prefix="chaos-sim-") as directory:
        copy_of(place, directory)
        while count < rounds if rounds else time.monotonic() < until:
            seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(1 << 31)
            began, used = time.monotonic(), sum(os.times()[:4])
            found = one_round(place, seed, chosen.kind, chosen.keep)
            count, compared, inexact = count + 1, compared + found.compared, inexact + found.inexact
            print(f"{'WRONG' if found.problems else 'ok':5} --seed {seed:<10} {found.kind:7} {time.monotonic() - began:5.1f} s, "
                  f"{found.compared} processes, {found.inexact} not exact: {found.about}", flush=True)
            for problem in found.problems[:12]:
                print(f"      {problem[:400]}", flush=True)
            if found.problems:
                wrong.append(found.seed)
                print(f"      kept in {found.kept}", flush=True)
            rest(began, used)
    print(json.dumps({"rounds": count, "wrong": wrong, "compared": compared, "not_exact": inexact}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
