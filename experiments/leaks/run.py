#!/usr/bin/env python3
"""Scores the leak verdicts on a corpus of labeled programs.

usage: run.py [--half tune|held-out|all] [--only NAME...] [--seeds 1,2,3] [--seconds-scale X] [--jobs N]
              [--from-recording] [--out FILE] [--keep DIR] [--build DIR]

Runs each scenario of `workload leaks` on the simulated driver under `vramscope trace --json --interval 1s
--stacks full`, and compares the suspects of the last report with the labels of `workload leaks --list`. Suspects are
matched by the function names in their frames. With --from-recording, the run is recorded, the suspects of
`vramscope report FILE leaks` are scored, and those of the trace must be the same. Needs root and
the output of `./dev build`, no GPU. Exits with 1 if a leak is missed, a healthy function is reported as a leak, or
file and trace differ.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import tempfile

# Bytecode files next to the scripts would belong to root.
sys.dont_write_bytecode = True
sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import score
import table

# Functions of the workload that create something for a scenario. Most scenarios call them from one place, so they cannot
# be recognized as wrappers.
WRAPPERS = [option for name in ("plain", "stream_ordered", "pooled", "managed", "pinned", "registered", "physical", "array",
                                "exported", "stream", "event", "graph", "exec", "module", "library", "pool", "context")
            for option in ("--wrapper", name)]


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--half", choices=["tune", "held-out", "all"], default="all")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run only these scenarios")
    parser.add_argument("--seeds", default="1", help="comma-separated; each scenario runs with each seed")
    parser.add_argument("--seconds-scale", type=float, default=1.0, help="factor for the duration of each scenario")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios to run in parallel")
    parser.add_argument("--from-recording", action="store_true", help="score recordings, and compare them with the trace")
    parser.add_argument("--out", help="write the tables to this file as Markdown")
    parser.add_argument("--keep", metavar="DIR", help="keep the reports in this directory")
    parser.add_argument("--build", default="target/release", help="output directory of ./dev build")
    options = parser.parse_args(arguments)
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.seconds_scale <= 0 or options.jobs < 1:
        parser.error("--seconds-scale and --jobs must be above zero")
    return options


class ScenarioRunner:
    """Runs scenarios under the tracer and scores them."""

    def __init__(self, options, directory):
        build = os.path.abspath(options.build)
        self.options = options
        self.directory = directory
        self.vramscope = os.path.join(build, "vramscope")
        self.workload = os.path.join(build, "sim", "workload")
        for path in (self.vramscope, self.workload):
            if not os.path.exists(path):
                sys.exit(f"{path} does not exist: run ./dev build")
        self.environment = {**os.environ, "LD_LIBRARY_PATH": os.path.join(build, "sim")}

    def scenarios(self):
        listed = subprocess.run([self.workload, "leaks", "--list"], env=self.environment, capture_output=True, text=True,
                                check=True)
        known = json.loads(listed.stdout)
        unknown = set(self.options.only) - {scenario["name"] for scenario in known}
        if unknown:
            sys.exit(f"unknown scenario {', '.join(sorted(unknown))}: see `workload leaks --list`")
        wanted = []
        for scenario in known:
            if self.options.half not in ("all", scenario["half"]):
                continue
            if self.options.only and scenario["name"] not in self.options.only:
                continue
            if scenario["missing"]:
                print(f"{scenario['name']} skipped: the driver has no {', '.join(scenario['missing'])}",
                      file=sys.stderr)
                continue
            wanted.append(scenario)
        return wanted

    def run(self, scenario, seed):
        """Runs one scenario with one seed and returns its score."""
        name = os.path.join(self.directory, f"{scenario['name']}-{seed}")
        reports_file, recording = name + ".jsonl", name + ".arrows"
        seconds = scenario["seconds"] * self.options.seconds_scale
        command = [self.vramscope, "trace", "--json", "--interval", "1s", "--stacks", "full", "--force", "-o", reports_file,
                   *WRAPPERS]
        if scenario["group"].rpartition("-")[2] in ("segments", "tensors"):
            command.append("--allocators")
        if self.options.from_recording:
            command += ["--record", recording]
        command += ["--", self.workload, "leaks", scenario["name"], "--seconds", str(seconds), "--seed", str(seed)]
        self.call(command, seconds + 60)
        with open(reports_file, encoding="utf-8") as file:
            reports = [json.loads(line) for line in file]
        if not reports:
            raise RuntimeError(f"{shlex.join(command)}: no report")
        lost = reports[-1]["lost_events"] + reports[-1]["lost_stacks"]
        if not self.options.from_recording:
            if "suspects" not in reports[-1]:
                raise RuntimeError("the reports of this vramscope have no `suspects`: use --from-recording")
            return score.Result(scenario, seed, reports[-1], reports, None, lost)
        report = self.call([self.vramscope, "report", recording, "leaks", "--format", "json", "--top", "1000", *WRAPPERS],
                           60)
        with open(name + ".report.json", "w", encoding="utf-8") as file:
            file.write(report)
        live = reports[-1] if "suspects" in reports[-1] else None
        return score.Result(scenario, seed, json.loads(report), reports, live, lost)

    def call(self, command, seconds, codes=(0,)):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=seconds)
        if done.returncode not in codes:
            raise RuntimeError(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout


def main():
    options = parse_options(sys.argv[1:])
    with tempfile.TemporaryDirectory() as directory:
        if options.keep:
            os.makedirs(options.keep, exist_ok=True)
            directory = options.keep
        runner = ScenarioRunner(options, os.path.abspath(directory))
        runs = [(scenario, seed) for scenario in runner.scenarios() for seed in options.seeds]
        lines = []

        def show(text):
            print(text, flush=True)
            lines.append(text)

        for text in table.head(runner.vramscope, "run.py " + shlex.join(sys.argv[1:])):
            show(text)
        results, broken = [], []
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as workers:
            futures = [(scenario, seed, workers.submit(runner.run, scenario, seed)) for scenario, seed in runs]
            for scenario, seed, future in futures:
                try:
                    results.append(future.result())
                    show(table.row(results[-1]))
                except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                    broken.append(f"{scenario['name']} with seed {seed}: {error!r}")
                    print(broken[-1], file=sys.stderr, flush=True)
        for field in ("group", "half"):
            parts = collections.defaultdict(list)
            for result in results:
                parts[result.scenario[field]].append(result)
            for text in table.totals(field, parts):
                show(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    if broken or not results:
        print(f"{len(broken)} of {len(runs)} runs could not be scored", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if all(result.passed for result in results) else 1)


if __name__ == "__main__":
    main()
