"""The experiments: what each runs, and what it shows."""
import json
import os
import re
import shutil
import statistics
import subprocess
import time

from runner import compare
from runner.machine import scrub
from runner.tracing import Trouble, other_tracers, run

MIB = 1 << 20

# All of a thread's allocations, so that each can be compared.
LISTED = ["--interval", "500ms", "--top", "100000"]

# The stress test looks at what the tracer costs in its usual settings.
USUAL = ["--interval", "1s", "--top", "10"]


def _cut(report):
    """A report small enough to be kept: the first allocations of each thread, no sites."""
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
        # Compared already, and long.
        account["segments"] = len(account.get("segments", []))
    truth = [{key: one[key] for key in ("pid", "allocations", "frees", "failed_allocations", "live_bytes", "peak_bytes")}
             for one in traced["truth"].values()]
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
        "simulator": truth,
        "last_report": _cut(traced["reports"][-1]),
    }


def _shorter(words):
    """The same program, for less long, but with everything live for a while at its end."""
    short = {"--duration": "2", "--steps": "100", "--iter-ms": "50", "--hold-ms": "1500"}
    words = words if "--hold-ms" in words else [*words, "--hold-ms", ""]
    return [short.get(before, word) for before, word in zip(["", *words], words)]


class Experiments:
    """Makes experiments on a bench; each gives its cases."""

    def __init__(self, bench, quick, nvcc, picture):
        self.bench, self.quick, self.nvcc, self.picture = bench, quick, nvcc, picture
        self.simulated = bench.driver == "simulated"

    def seconds(self, simulated, real, quick=1):
        return str(quick if self.quick else simulated if self.simulated else real)

    def plain(self, name, case, words, by="kind", rows=lambda traced: [], drawn=True, **options):
        """One program under the tracer; with its text, and a picture if it is the experiment's main case."""
        if not self.simulated:
            # Names of frames are read from the process, which should not be gone by then.
            words = [*words, "--hold-ms", "500"]
        traced = self.bench.trace(f"{name}-{case}".replace(" ", "-"), words, options=LISTED, **options)
        more = {"text": self.bench.text(traced["recording"])}
        if drawn and not self.quick:
            more["picture"] = self.picture(name, traced["recording"], by)
            more["live"] = self.bench.live(name, _shorter(words), options.get("environment", {}))
        return _case(case, traced, compare.processes(traced) + rows(traced), **more)

    def correctness(self):
        if not self.simulated:
            yield self.plain("correctness", "train", [
                "train", "--steps", "60" if self.quick else "240", "--keep-every", "20", "--step-ms", "10",
                "--mb", "8", "--empty-cache-every", "50", "--fail-once"])
            return
        yield self.plain("correctness", "train", [
            "train", "--steps", "60" if self.quick else "400", "--keep-every", "20", "--step-ms", "10", "--mb", "8"])
        yield self.plain("correctness", "three allocations, two frees",
                         ["leak3", "--work-ms", "200", "--wait-ms", "200"], drawn=False)
        yield self.plain("correctness", "full device", ["oom", "--chunk-mb", "300", "--wait-ms", "200"],
                         drawn=False, environment={"SIM_MEMORY": "2G"})

    def processes(self):
        words = ["stressor", "--procs", "4", "--duration", self.seconds(6, 6), "--min-mb", "2", "--max-mb", "10",
                 "--sleep-ms", "25", "--leak-prob", "0.1"]
        yield self.plain("processes", "four processes", words if self.simulated else [*words, "--compute"], by="process")

    def threads(self):
        words = ["threads", "--threads", "5", "--duration", self.seconds(8, 4), "--max-tensor-mb", "10",
                 "--alloc-prob", "0.65", "--memory-cap-mb", "4096"]
        if self.simulated:
            yield self.plain("threads", "five threads", words)
            return
        yield self.plain("threads", "five threads, each tensor a driver call", [*words, "--no-cache"])
        yield self.plain("threads", "five threads, PyTorch's cache", words, drawn=False)

    def anomaly(self):
        words = ["anomaly", "--threads", "4", "--iterations", "20", "--normal-mb", "10", "--anomaly-mb", "2096",
                 "--anomaly-thread", "0", "--anomaly-iter", "5", "--iter-ms", "20" if self.quick else "100"]
        rows = lambda traced: compare.biggest(traced, 2096 * MIB, "worker-0")
        if self.simulated:
            yield self.plain("anomaly", "one huge allocation", words, rows=rows)
            return
        yield self.plain("anomaly", "one huge allocation, each tensor a driver call", [*words, "--no-cache"], rows=rows)
        yield self.plain("anomaly", "one huge allocation, PyTorch's cache", words, rows=rows, drawn=False)

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
            traced = self.bench.trace(f"stress-{throughput}-{ratio}", words, options=USUAL, sampled=True, record=False)
            rows = compare.processes(traced)
            yield _case(name, traced, rows, cost=_cost(traced))

    def loops(self):
        yield from (self._simulated_loops() if self.simulated else self._real_loops())

    def _simulated_loops(self):
        pairs, launches = (2000, 2000) if self.quick else (100000, 100000)

        def once(verb, options, turn):
            times = {}
            counts = {}
            for words in (["launches", "--time", "--kernels", "1", "--iterations", str(launches)],
                          ["spam", "--throughput", "max", "--count", str(2 * pairs)]):
                done, report = self._loop(words, verb, options, turn)
                told = "\n".join(done.stdout + done.stderr)
                launch = re.search(r"([\d.]+) ns per launch", told)
                pair = re.search(r"(\d+) events in [\d.]+ s: (\d+) events/s", told)
                if launch:
                    times["ns_per_launch"] = float(launch[1])
                    counts["launches"] = (launches, report)
                elif pair:
                    times["ns_per_pair"] = round(2e9 / int(pair[2]), 1)
                    counts["pairs"] = (pairs, report)
            return times, counts

        yield self._turns(once)

    def _real_loops(self):
        binary = os.path.join(self.bench.folder, "loops")
        if not self.nvcc:
            raise Trouble("there is no nvcc; name it with --nvcc")
        source = os.path.join("experiments", "workloads", "loops.cu")
        built = run([self.nvcc, "-O2", "-o", binary, source], dict(os.environ), self.bench.limit)
        if built.code != 0:
            raise Trouble(f"nvcc: {' '.join(built.stderr)[-400:]}")

        def once(verb, options, turn):
            done, report = self._loop([binary, "100000", "5000"], verb, options, turn)
            told = next(json.loads(line) for line in done.stdout if line.startswith("{"))
            times = {key: told[key] for key in ("ns_per_launch", "ns_per_pair")}
            return times, {"launches": (told["launches"], report), "pairs": (told["pairs"], report)}

        yield self._turns(once)

    def _loop(self, words, verb, options, turn):
        """A loop, bare or traced; what it said, and the last report."""
        if verb is None:
            real, _ = self.bench.program(words)
            place = os.path.join(self.bench.folder, "bare")
            os.makedirs(place, exist_ok=True)
            done = run(real, self.bench.environment({}, place), self.bench.limit)
            if done.code != 0:
                raise Trouble(f"exit {done.code}: {' '.join(done.stderr[-3:])}")
            return done, None
        name = f"loops-{os.path.basename(words[0])}-{verb}-{turn}"
        traced = self.bench.trace(name, words, verb, options=["--interval", "1s", *options], record=False)
        return traced["done"], traced["reports"][-1]

    def _turns(self, once):
        """By turns, so that what else the machine does meets all of them alike."""
        ways = {"not traced": (None, ()), "trace": ("trace", ()), "trace, no stacks": ("trace", ("--stacks", "off")),
                "kernels": ("kernels", ())}
        times = {way: {} for way in ways}
        rows = {}
        disturbed = 0
        patience = time.monotonic() + (120 if self.simulated else 10)
        for turn in range(2 if self.quick else 5 if self.simulated else 3):
            for way, (verb, options) in ways.items():
                found, counts, alone = self._alone(lambda: once(verb, options, turn), patience)
                disturbed += not alone
                for loop, nanoseconds in found.items():
                    times[way].setdefault(loop, []).append(nanoseconds)
                for what, row in _counted(verb, counts):
                    # One row of all turns: the first that is off, or the last.
                    if rows.get(what, {}).get("verdict") != "off":
                        rows[what] = row
        rows = list(rows.values())
        loops = []
        for way, found in times.items():
            for loop, values in sorted(found.items()):
                bare = statistics.median(times["not traced"][loop])
                middle = statistics.median(values)
                loops.append({"loop": loop, "way": way, "median": middle, "ratio": round(middle / bare, 3), "all": values})
        return {"case": "alternating", "command": None, "verdict": compare.verdict(rows), "checks": rows, "loops": loops,
                "disturbed": disturbed, "turns": len(ways) * len(times["not traced"]["ns_per_pair"])}

    def _alone(self, once, patience):
        """Measures while no other tracer runs; again if one came meanwhile, as long as there is time."""
        while True:
            while other_tracers() and time.monotonic() < patience and not self.quick:
                time.sleep(0.05)
            before = other_tracers()
            found, counts = once()
            alone = before + other_tracers() == 0
            if alone or self.quick or time.monotonic() > patience:
                return found, counts, alone


def _counted(verb, counts):
    """Rows: what vramscope counted in a loop."""
    for what, (made, report) in counts.items():
        if report is None or (verb == "kernels") != (what == "launches"):
            continue
        lost = report["lost_events"] + report.get("lost_launches", 0)
        if what == "launches":
            told = sum(process["launches_total"] for process in report["processes"])
            yield "launches", compare.check("launches counted by `kernels`", made, told, f"{lost} lost")
        else:
            for field, name in (("allocations_total", "allocations"), ("frees_total", "frees")):
                told = sum(process[field] for process in report["processes"])
                yield name, compare.check(f"{name} reported by `trace`", made, told, f"{lost} lost")


def _made(traced):
    """Events of a program and how many a second, by its own word."""
    for account in traced["accounts"].values():
        return account["events"], account["events_per_second"]
    found = re.search(r"(\d+) events in [\d.]+ s: (\d+) events/s", "\n".join(traced["done"].stdout))
    if not found:
        raise Trouble("the program did not tell how many events it made")
    return int(found[1]), int(found[2])


def _cost(traced):
    """What the tracer itself took while the program made events."""
    samples = traced["done"].samples
    if len(samples) < 3:
        raise Trouble("the program ended too soon to be looked at")
    (first, cpu, resident), (last, cpu_end, _) = samples[0], samples[-1]
    parts = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(samples, samples[1:])]
    events, rate = _made(traced)
    used = (cpu_end - cpu) / (last - first)
    return {
        "seconds": round(last - first, 2),
        "events": events,
        "events_per_second": rate,
        "cpu_percent": round(100 * used, 2),
        # The program's stacks are new then, and get their names.
        "cpu_percent_first": round(100 * parts[0], 2),
        "cpu_percent_max_later": round(100 * max(parts[1:]), 2),
        "cpu_us_per_event": round(1e6 * used / rate, 2),
        "resident_first": resident,
        "resident_max": max(sample[2] for sample in samples),
    }


def find_nvcc(asked):
    """The compiler, where it usually is."""
    if asked:
        return asked
    for place in (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"):
        path = os.path.join(place, "bin", "nvcc")
        if place and os.access(path, os.X_OK):
            return path
    return shutil.which("nvcc")


def has_torch(python):
    """Whether this Python has PyTorch, without loading it."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0
