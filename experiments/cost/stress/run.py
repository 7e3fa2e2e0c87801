#!/usr/bin/env python3
"""Measures the cost of tracing at 1,000, 4,000 and 20,000 events/s and at full speed.

usage: run.py [--seconds 8 | --quick] [--cells N] [--skip cells|other_tools] [--results FILE] [--driver sim|real] …

A cell is a rate, all or nothing freed, with or without reports, with or without stacks: 32 cells. Each is compared
with the oracle of the simulated driver, or on a real driver with the target's own account. Then floors, other tools
and the tracer alternate on the same pairs of allocation and free. Needs root. Exits with 1 if an event was lost
or a value is wrong.
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

import cells
import other_tools
from lib import machine, results
from lib.paths import Setup, argument_parser
from lib.processes import kill_children_at_exit


def say(text):
    print(text, flush=True)


def show(cell):
    ring = cell["ring"]
    fill = f"{ring['most_bytes'] / ring['of_bytes'] * 100:.2f} %" if ring.get("of_bytes") else "?"
    added = f"{cell['added_ns']:.0f}" if "added_ns" in cell else "-"
    say(f"| {cell['rate']} | {cell['free_ratio']:.0f} | {'on' if cell['printing'] else 'off'} | {cell['stacks']} "
        f"| {cell['rate_reached']:,.0f} | {cell['cpu_percent']:.2f} | {cell['user_us']:.2f} | {cell['system_us']:.2f} "
        f"| {cell['memory_mb']:.1f} | {fill} | {added} | {cell['lost']} | {'yes' if cell['right'] else 'NO'} |")


def run_cells(setup, options):
    done = {"seconds": options.seconds, "idle": cells.idle(setup, min(options.seconds, 3.0)), "cells": []}
    say(f"idle: {done['idle']['cpu_percent']:.2f} % of a core, {done['idle']['memory_mb']:.1f} MB")
    say("| rate | freed | reports | stacks | events/s | CPU % | user us/event | system us/event | MB | ring | added ns/call "
        "| lost | complete |")
    say("|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    wanted = cells.every_cell(options.seconds)
    if options.cells:
        # Spread over the table, the most expensive cell first.
        wanted = [wanted[(31 - 11 * i) % 32] for i in range(min(options.cells, 32))]
    for cell in wanted:
        with tempfile.TemporaryDirectory() as directory:
            done["cells"].append(cells.measure(setup, cell, directory))
        show(cell)
    return done


def run_other_tools(setup, options):
    rounds, count = (1, 10_000) if options.quick else (options.rounds, 50_000)
    with tempfile.TemporaryDirectory() as directory:
        done = other_tools.compare(setup, directory, rounds, count, say)
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
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a cell")
    parser.add_argument("--quick", action="store_true", help="1.5 s per cell, 1 round")
    parser.add_argument("--cells", type=int, help="only this number of cells, spread over the table")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each tool")
    parser.add_argument("--skip", choices=["cells", "other_tools"], action="append", default=[])
    options = parser.parse_args()
    if options.quick:
        options.seconds = 1.5
    kill_children_at_exit()
    setup = Setup(options)
    facts = machine.measurement_facts(setup.vramscope)
    facts["driver"] = "simulated" if setup.simulated else "real"
    wrong = []
    if "cells" not in options.skip:
        done = run_cells(setup, options)
        wrong = [cell for cell in done["cells"] if not cell["right"]]
        if options.results:
            results.store(options.results, options.machine, "stress", done, facts)
    if "other_tools" not in options.skip:
        done = run_other_tools(setup, options)
        if options.results:
            results.store(options.results, options.machine, "other_tools", done, facts)
    for cell in wrong:
        say(f"WRONG: {cell['rate']}/s: {cell['received']} of {cell['truth']} events received, {cell['lost']} reported as lost")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
