"""The published experiments and their cases."""
import functools
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import time

from lib.machine import scrub
from lib.processes import ExperimentError, other_tracers, run_to_end

from runner import compare

MIB = 1 << 20

# Lists all allocations of a thread, so that each can be compared.
LIST_ALL = ["--interval", "500ms", "--top", "100000"]

# The stress experiment measures the tracer with default options.
DEFAULTS = ["--interval", "1s", "--top", "10"]


def _shortened(report):
    """Returns a report that is small enough to store: the first allocations of each thread, no sites."""
    kept = {key: value for key, value in report.items() if key != "sites"}
    kept["processes"] = []
    for process in report["processes"]:
        process = {key: value for key, value in process.items() if key != "sites"}
        process["threads"] = [{**thread, "allocations": thread["allocations"][:3]} for thread in process["threads"]]
        kept["processes"].append(process)
    return kept


def _case(name, traced, rows, **more):
    done = traced["done"]
    accounts = list(traced["accounts"].values())
    for account in accounts:
        # Already compared, and long.
        account["segments"] = len(account.get("segments", []))
    fields = ("pid", "allocations", "frees", "failed_allocations", "live_bytes", "peak_bytes")
    oracle = [{key: account[key] for key in fields} for account in traced["oracle"].values()]
    return {
        "case": name,
        "command": traced["command"],
        "seconds": round(done.seconds, 1),
        "verdict": compare.verdict(rows),
        "checks": rows,
        **more,
        "output": [scrub(line) for line in done.stdout if not line.startswith(("{", "ready"))][-20:],
        "messages": list(dict.fromkeys(scrub(line) for line in done.stderr))[-10:],
        "accounts": accounts,
        "simulator": oracle,
        "last_report": _shortened(traced["reports"][-1]),
    }


def _shorter(words):
    """Returns the arguments of a shorter run, which holds its memory for a while at the end."""
    short = {"--duration": "2", "--steps": "100", "--iter-ms": "50", "--hold-ms": "1500"}
    words = words if "--hold-ms" in words else [*words, "--hold-ms", ""]
    return [short.get(before, word) for before, word in zip(["", *words], words)]


class Experiments:
    """The experiments by name; each yields its cases."""

    def __init__(self, runner, quick, nvcc, plot):
        self.runner, self.quick, self.nvcc, self.plot = runner, quick, nvcc, plot
        self.simulated = runner.driver == "simulated"

    def seconds(self, simulated, real, quick=1):
        return str(quick if self.quick else simulated if self.simulated else real)

    def one_program(self, name, case, words, by="kind", rows=lambda traced: [], main=True, **options):
        """Traces one program; the main case of an experiment also has a live report and a chart."""
        if not self.simulated:
            # Symbols are read from the process, which must still run then.
            words = [*words, "--hold-ms", "500"]
        traced = self.runner.trace(f"{name}-{case}".replace(" ", "-"), words, options=LIST_ALL, **options)
        more = {"text": self.runner.text(traced["recording"])}
        if main and not self.quick:
            more["picture"] = self.plot(name, traced["recording"], by)
            more["live"] = self.runner.live(name, _shorter(words), options.get("environment", {}))
        return _case(case, traced, compare.processes(traced) + rows(traced), **more)

    def correctness(self):
        if not self.simulated:
            yield self.one_program("correctness", "train", [
                "train", "--steps", "60" if self.quick else "240", "--keep-every", "20", "--step-ms", "10",
                "--mb", "8", "--empty-cache-every", "50", "--fail-once"])
            return
        yield self.one_program("correctness", "train", [
            "train", "--steps", "60" if self.quick else "400", "--keep-every", "20", "--step-ms", "10", "--mb", "8"])
        yield self.one_program("correctness", "three allocations, two frees",
                         ["leak3", "--work-ms", "200", "--wait-ms", "200"], main=False)
        yield self.one_program("correctness", "full device", ["oom", "--chunk-mb", "300", "--wait-ms", "200"],
                         main=False, environment={"SIM_MEMORY": "2G"})

    def processes(self):
        words = ["stressor", "--procs", "4", "--duration", self.seconds(6, 6), "--min-mb", "2", "--max-mb", "10",
                 "--sleep-ms", "25", "--leak-prob", "0.1"]
        yield self.one_program("processes", "four processes", words if self.simulated else [*words, "--compute"], by="process")

    def threads(self):
        words = ["threads", "--threads", "5", "--duration", self.seconds(8, 4), "--max-tensor-mb", "10",
                 "--alloc-prob", "0.65", "--memory-cap-mb", "4096"]
        if self.simulated:
            yield self.one_program("threads", "five threads", words)
            return
        yield self.one_program("threads", "five threads, each tensor a driver call", [*words, "--no-cache"])
        yield self.one_program("threads", "five threads, PyTorch's cache", words, main=False)

    def anomaly(self):
        words = ["anomaly", "--threads", "4", "--iterations", "20", "--normal-mb", "10", "--anomaly-mb", "2096",
                 "--anomaly-thread", "0", "--anomaly-iter", "5", "--iter-ms", "20" if self.quick else "100"]
        rows = lambda traced: compare.largest_allocation(traced, 2096 * MIB, "worker-0")
        if self.simulated:
            yield self.one_program("anomaly", "one huge allocation", words, rows=rows)
            return
        yield self.one_program("anomaly", "one huge allocation, each tensor a driver call", [*words, "--no-cache"], rows=rows)
        yield self.one_program("anomaly", "one huge allocation, PyTorch's cache", words, rows=rows, main=False)

    def stress(self):
        rates = [("1000", "1.0"), ("4000", "1.0"), ("4000", "0.0")]
        if self.simulated:
            rates.append(("max", "1.0"))
        for throughput, ratio in rates:
            words = ["spam", "--throughput", throughput, "--allocate-size", "2048", "--free-ratio", ratio,
                     "--duration", self.seconds(10, 3), "--wait-start"]
            if not self.simulated:
                words.append("--no-cache")
            name = "full speed" if throughput == "max" else f"{throughput} events/s"
            name += ", all freed" if ratio == "1.0" else ", none freed"
            traced = self.runner.trace(f"stress-{throughput}-{ratio}", words, options=DEFAULTS, sampled=True, record=False)
            rows = compare.processes(traced)
            yield _case(name, traced, rows, cost=_cost(traced))

    def loops(self):
        yield from (self._simulated_loops() if self.simulated else self._real_loops())

    def _simulated_loops(self):
        pairs, launches = (2000, 2000) if self.quick else (100000, 100000)

        def once(verb, options, round_number):
            times = {}
            counts = {}
            for words in (["launches", "--time", "--kernels", "1", "--iterations", str(launches)],
                          ["spam", "--throughput", "max", "--count", str(2 * pairs)]):
                done, report = self._loop(words, verb, options, round_number)
                text = "\n".join(done.stdout + done.stderr)
                launch = re.search(r"([\d.]+) ns per launch", text)
                pair = re.search(r"(\d+) events in [\d.]+ s: (\d+) events/s", text)
                if launch:
                    times["ns_per_launch"] = float(launch[1])
                    counts["launches"] = (launches, report)
                elif pair:
                    times["ns_per_pair"] = round(2e9 / int(pair[2]), 1)
                    counts["pairs"] = (pairs, report)
            return times, counts

        yield self._alternating(once)

    def _real_loops(self):
        binary = os.path.join(self.runner.directory, "loops")
        if not self.nvcc:
            raise ExperimentError("nvcc not found; give its path with --nvcc")
        source = os.path.join("experiments", "published", "workloads", "loops.cu")
        built = run_to_end([self.nvcc, "-O2", "-o", binary, source], dict(os.environ), self.runner.timeout)
        if built.code != 0:
            raise ExperimentError(f"nvcc: {' '.join(built.stderr)[-400:]}")

        def once(verb, options, round_number):
            done, report = self._loop([binary, "100000", "5000"], verb, options, round_number)
            printed = next(json.loads(line) for line in done.stdout if line.startswith("{"))
            times = {key: printed[key] for key in ("ns_per_launch", "ns_per_pair")}
            return times, {"launches": (printed["launches"], report), "pairs": (printed["pairs"], report)}

        yield self._alternating(once)

    def _loop(self, words, verb, options, round_number):
        """Runs a loop, traced or not. Returns its output and the last report."""
        if verb is None:
            real, _ = self.runner.program(words)
            directory = os.path.join(self.runner.directory, "untraced")
            os.makedirs(directory, exist_ok=True)
            done = run_to_end(real, self.runner.environment({}, directory), self.runner.timeout)
            if done.code != 0:
                raise ExperimentError(f"exit {done.code}: {' '.join(done.stderr[-3:])}")
            return done, None
        name = f"loops-{os.path.basename(words[0])}-{verb}-{round_number}"
        traced = self.runner.trace(name, words, verb, options=["--interval", "1s", *options], record=False)
        return traced["done"], traced["reports"][-1]

    def _alternating(self, once):
        """Alternates the tracers, so that other activity on the machine affects all of them alike."""
        tracers = {"not traced": (None, ()), "trace": ("trace", ()), "trace, no stacks": ("trace", ("--stacks", "off")),
                   "kernels": ("kernels", ())}
        times = {tracer: {} for tracer in tracers}
        rows = {}
        disturbed = 0
        deadline = time.monotonic() + (120 if self.simulated else 10)
        for round_number in range(2 if self.quick else 5 if self.simulated else 3):
            for tracer, (verb, options) in tracers.items():
                found, counts, alone = self._alone(functools.partial(once, verb, options, round_number), deadline)
                disturbed += not alone
                for loop, nanoseconds in found.items():
                    times[tracer].setdefault(loop, []).append(nanoseconds)
                for name, row in _count_rows(verb, counts):
                    # One row for all rounds: the first that is off, or the last.
                    if rows.get(name, {}).get("verdict") != "off":
                        rows[name] = row
        rows = list(rows.values())
        loops = []
        for tracer, found in times.items():
            for loop, values in sorted(found.items()):
                untraced = statistics.median(times["not traced"][loop])
                median = statistics.median(values)
                loops.append({"loop": loop, "way": tracer, "median": median, "ratio": round(median / untraced, 3),
                              "all": values})
        return {"case": "alternating", "command": None, "verdict": compare.verdict(rows), "checks": rows, "loops": loops,
                "disturbed": disturbed, "turns": len(tracers) * len(times["not traced"]["ns_per_pair"])}

    def _alone(self, once, deadline):
        """Measures while no other tracer runs; repeats the measurement until the deadline if one started meanwhile."""
        while True:
            while other_tracers() and time.monotonic() < deadline and not self.quick:
                time.sleep(0.05)
            before = other_tracers()
            found, counts = once()
            alone = before + other_tracers() == 0
            if alone or self.quick or time.monotonic() > deadline:
                return found, counts, alone


def _count_rows(verb, counts):
    """Yields a row for each count of vramscope in a loop."""
    for loop, (expected, report) in counts.items():
        if report is None or (verb == "kernels") != (loop == "launches"):
            continue
        lost = report["lost_events"] + report.get("lost_launches", 0)
        if loop == "launches":
            reported = sum(process["launches_total"] for process in report["processes"])
            yield "launches", compare.check("launches counted by `kernels`", expected, reported, f"{lost} lost")
        else:
            for field, name in (("allocations_total", "allocations"), ("frees_total", "frees")):
                reported = sum(process[field] for process in report["processes"])
                yield name, compare.check(f"{name} reported by `trace`", expected, reported, f"{lost} lost")


def _events_and_rate(traced):
    """Returns the number of events and events per second, as the program printed them."""
    for account in traced["accounts"].values():
        return account["events"], account["events_per_second"]
    found = re.search(r"(\d+) events in [\d.]+ s: (\d+) events/s", "\n".join(traced["done"].stdout))
    if not found:
        raise ExperimentError("the program did not print its number of events")
    return int(found[1]), int(found[2])


def _cost(traced):
    """Returns CPU time and memory of the tracer while the program made events."""
    samples = traced["done"].samples
    if len(samples) < 3:
        raise ExperimentError("the program ended before three samples were taken")
    (first, cpu, resident), (last, cpu_end, _) = samples[0], samples[-1]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(samples)]
    events, rate = _events_and_rate(traced)
    used = (cpu_end - cpu) / (last - first)
    return {
        "seconds": round(last - first, 2),
        "events": events,
        "events_per_second": rate,
        "cpu_percent": round(100 * used, 2),
        # The stacks of the program are new then, and their symbols are resolved.
        "cpu_percent_first": round(100 * rates[0], 2),
        "cpu_percent_max_later": round(100 * max(rates[1:]), 2),
        "cpu_us_per_event": round(1e6 * used / rate, 2),
        "resident_first": resident,
        "resident_max": max(sample[2] for sample in samples),
    }


def find_nvcc(path):
    """Returns the CUDA compiler: the given one, or the one in the usual directories."""
    if path:
        return path
    for home in (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"):
        path = os.path.join(home, "bin", "nvcc")
        if home and os.access(path, os.X_OK):
            return path
    return shutil.which("nvcc")


def has_torch(python):
    """Returns whether a Python has PyTorch, without loading it."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0
