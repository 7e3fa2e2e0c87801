#!/usr/bin/env python3
"""Stress: what tracing costs at 1,000, 4,000 and 20,000 events/s and at full speed.

usage: run.py [--seconds 8 | --quick] [--cells N] [--skip cells|other_tools] [--results FILE] [--driver sim|real] …

A cell is a rate, a part that is freed, reports or none, stacks or none: 32 of them. Each is compared with
the oracle of the simulated driver, or with a real driver with the target's own account. Then floors, other tools
and the tracer alternate on the same pairs of allocation and free. Needs root. Exits with 1 if an event was lost
or a value is wrong.
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import cells  # noqa: E402
import rivals  # noqa: E402
from bench import results  # noqa: E402
from bench.place import Place, options  # noqa: E402
from bench.processes import end_well  # noqa: E402


def say(text):
    print(text, flush=True)


def show(cell):
    ring = cell["ring"]
    fill = f"{ring['most_bytes'] / ring['of_bytes'] * 100:.2f} %" if ring.get("of_bytes") else "?"
    added = f"{cell['added_ns']:.0f}" if "added_ns" in cell else "-"
    say(f"| {cell['rate']} | {cell['free_ratio']:.0f} | {'on' if cell['printing'] else 'off'} | {cell['stacks']} "
        f"| {cell['rate_reached']:,.0f} | {cell['cpu_percent']:.2f} | {cell['user_us']:.2f} | {cell['system_us']:.2f} "
        f"| {cell['memory_mb']:.1f} | {fill} | {added} | {cell['lost']} | {'yes' if cell['right'] else 'NO'} |")


def run_cells(place, chosen):
    done = {"seconds": chosen.seconds, "idle": cells.idle(place, min(chosen.seconds, 3.0)), "cells": []}
    say(f"idle: {done['idle']['cpu_percent']:.2f} % of a core, {done['idle']['memory_mb']:.1f} MB")
    say("| rate | freed | reports | stacks | events/s | CPU % | user us/event | system us/event | MB | ring | added ns/call "
        "| lost | right |")
    say("|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    wanted = cells.every_cell(chosen.seconds)
    if chosen.cells:
        # Spread over the table, the hardest one first.
        wanted = [wanted[(31 - 11 * i) % 32] for i in range(min(chosen.cells, 32))]
    for cell in wanted:
        with tempfile.TemporaryDirectory() as folder:
            done["cells"].append(cells.measure(place, cell, folder))
        show(cell)
    return done


def run_other_tools(place, chosen):
    rounds, count = (1, 10_000) if chosen.quick else (chosen.rounds, 50_000)
    with tempfile.TemporaryDirectory() as folder:
        done = rivals.compare(place, folder, rounds, count, say)
    say("| way | ns per pair | added | x floor | ns in BPF programs | tracer CPU, us/event |")
    say("|---|---:|---:|---:|---:|---:|")
    for row in done["rows"]:
        if "missing" in row:
            say(f"| {row['way']} | not measured: {row['missing']} | | | | |")
            continue
        ratio = f"{row['to_floor']:.2f}" if row["to_floor"] is not None else "-"
        say(f"| {row['way']} | {row['pair_ns']:.0f} | {row['added_ns']:.0f} | {ratio} "
            f"| {row['in_programs_ns'] or 0:.0f} | {row['watcher_us']:.2f} |")
    return done


def main():
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a cell")
    parser.add_argument("--quick", action="store_true", help="1.5 s a cell, 1 round")
    parser.add_argument("--cells", type=int, help="only this number of cells, spread over the table")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each tool")
    parser.add_argument("--skip", choices=["cells", "other_tools"], action="append", default=[])
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seconds = 1.5
    end_well()
    place = Place(chosen)
    about = results.facts(place.vramscope)
    about["driver"] = "simulated" if place.simulated else "real"
    wrong = []
    if "cells" not in chosen.skip:
        done = run_cells(place, chosen)
        wrong = [cell for cell in done["cells"] if not cell["right"]]
        if chosen.results:
            results.keep(chosen.results, chosen.machine, "stress", done, about)
    if "other_tools" not in chosen.skip:
        done = run_other_tools(place, chosen)
        if chosen.results:
            results.keep(chosen.results, chosen.machine, "other_tools", done, about)
    for cell in wrong:
        say(f"WRONG: {cell['rate']}/s: {cell['received']} of {cell['truth']} events received, {cell['lost']} reported as lost")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
