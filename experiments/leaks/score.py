"""Scores the verdicts of a run against the labels of its scenario."""
import collections
import datetime
import re


def short_name(function):
    """Returns the name of a function without its path and the hash that Rust appends."""
    return re.sub(r"::h[0-9a-f]{16}$", "", function).rsplit("::", 1)[-1]


def function_names(entry):
    return [short_name(frame["function"]) for frame in entry.get("frames", [])]


def resource(entry):
    return entry.get("resource", "memory")


def parse_time(text):
    return datetime.datetime.fromisoformat(text)


class Result:
    """The score of one run.

    `scored` is the report to score, `reports` are those of the trace, `live` is the last of them if it must agree.
    """

    def __init__(self, scenario, seed, scored, reports, live, lost):
        self.scenario = scenario
        self.seed = seed
        self.lost = lost
        leaks = dict.fromkeys((leak["function"], leak["subject"]) for leak in scenario["leaks"])
        self.leaking = dict.fromkeys(function for function, _ in leaks)
        self.healthy = {other["function"]: other["verdicts"] for other in scenario["others"]}
        reported = self.suspects(scored)
        self.found = [function for function, what in leaks if (function, what) in reported]
        self.missed = [f"{function} ({what})" for function, what in leaks if (function, what) not in reported]
        # Another resource of a leaking function (the memory of a leaked object) is neither a hit nor a false alarm.
        self.false_alarms = sorted(f"{name} ({what})" for name, what in reported if name not in self.leaking)
        self.confidence = {self.function(entry): entry.get("confidence") for entry in scored["suspects"]}
        # The headline must be the labeled function, not a wrapper or a caller of it.
        self.misnamed = [entry["location"] for entry in scored["suspects"]
                         if short_name(entry["location"].split(" ")[0]) not in self.leaking]
        places = collections.Counter(leak["location"] for leak in scored["leaks"])
        self.split = [place for place, number in places.items() if number > 1]
        self.verdicts = self.verdicts_of(scored)
        self.history(reports, leaks)
        self.differs = self.compare(scored, live) if live else []

    def function(self, entry):
        """Returns the labeled function of an entry, or else its first function outside of the driver."""
        functions = function_names(entry)
        for function in functions:
            if function in self.leaking or function in self.healthy:
                return function
        return next((name for name in functions if name and not name.startswith("cu")), entry.get("site", "?"))

    def suspects(self, report):
        return {(self.function(entry), resource(entry)) for entry in report.get("suspects", [])}

    def verdicts_of(self, report):
        """Returns the verdicts by function and resource."""
        verdicts = {}
        for entry in report.get("suspects", []) + report.get("other_verdicts", []):
            key = (self.function(entry), resource(entry))
            verdicts.setdefault(key, set()).add(entry.get("verdict", "leak"))
        return verdicts

    def history(self, reports, leaks):
        """Finds when leaks were first reported, and which suspects were withdrawn."""
        began = self.first_allocation(reports)
        self.named, self.withdrawn = {}, []
        last = self.suspects(reports[-1])
        first = {}
        for report in reports:
            # Symbols may be resolved after the verdict.
            named = [entry for entry in report.get("suspects", []) if entry["frames"]]
            suspects = self.suspects({"suspects": named})
            at = (parse_time(report["time"]) - began).total_seconds()
            for key in suspects:
                first.setdefault(key, at)
        for (name, what), at in first.items():
            if (name, what) in leaks:
                self.named[name] = min(at, self.named.get(name, at))
            elif name not in self.leaking and (name, what) not in last:
                self.withdrawn.append(f"{name} ({what}) at {at:.0f} s")

    @staticmethod
    def first_allocation(reports):
        """Returns the time of the first allocation in the reports."""
        seen = [parse_time(site["first_seen"]) for report in reports for site in report.get("sites", [])]
        return min(seen, default=parse_time(reports[0]["time"]))

    def compare(self, scored, live):
        """Returns the differences between a recording and the trace that wrote it."""
        file, trace = self.verdicts_of(scored), self.verdicts_of(live)
        differences = []
        for key in sorted(file.keys() | trace.keys()):
            if file.get(key) != trace.get(key):
                texts = [" ".join(sorted(verdicts.get(key, {"nothing"}))) for verdicts in (file, trace)]
                differences.append(f"{key[0]} ({key[1]}): file {texts[0]}, trace {texts[1]}")
        return differences

    @property
    def unexpected_verdicts(self):
        """Verdicts of healthy functions that their labels do not allow; false alarms are counted separately."""
        unexpected = []
        for (name, _), verdicts in sorted(self.verdicts.items()):
            other = verdicts - set(self.healthy.get(name, verdicts)) - {"leak"}
            if other:
                unexpected.append(f"{name} {' '.join(sorted(other))}")
        return unexpected

    @property
    def passed(self):
        return not (self.missed or self.false_alarms or self.differs or self.misnamed or self.split)
