"""What was said of a scenario against what is true of it."""
import datetime
import re


def last_part(function):
    """What a function is called, without its path and the hash that Rust appends."""
    return re.sub(r"::h[0-9a-f]{16}$", "", function).rsplit("::", 1)[-1]


def names(entry):
    return [last_part(frame["function"]) for frame in entry.get("frames", [])]


def subject(entry):
    return entry.get("resource", "memory")


def moment(text):
    return datetime.datetime.fromisoformat(text)


class Result:
    """One run: `judged` is the answer that counts, `reports` are those of the trace, `live` the last of them where it
    has to say the same."""

    def __init__(self, scenario, seed, judged, reports, live, lost):
        self.scenario = scenario
        self.seed = seed
        self.lost = lost
        self.guilty = {leak["function"]: leak["subject"] for leak in scenario["leaks"]}
        self.healthy = {other["function"]: other["verdicts"] for other in scenario["others"]}
        accused = self.accused(judged)
        self.found = [function for function, what in self.guilty.items() if (function, what) in accused]
        self.missed = [function for function in self.guilty if function not in self.found]
        # A leak seen from another side (the memory of a forgotten object) is neither a find nor a false alarm.
        self.false_alarms = sorted(f"{name} ({what})" for name, what in accused if name not in self.guilty)
        self.sureness = {self.place(entry): entry.get("confidence") for entry in judged["suspects"]}
        self.words = self.verdicts(judged)
        self.history(reports)
        self.differs = self.compare(judged, live) if live else []

    def place(self, entry):
        """The function of a label that an entry is about, or what comes closest to one."""
        functions = names(entry)
        for function in functions:
            if function in self.guilty or function in self.healthy:
                return function
        return next((name for name in functions if name and not name.startswith("cu")), entry.get("site", "?"))

    def accused(self, report):
        return {(self.place(entry), subject(entry)) for entry in report.get("suspects", [])}

    def verdicts(self, report):
        """The verdicts of each place and subject."""
        words = {}
        for entry in report.get("suspects", []) + report.get("other_verdicts", []):
            key = (self.place(entry), subject(entry))
            words.setdefault(key, set()).add(entry.get("verdict", "leak"))
        return words

    def history(self, reports):
        """When leaks were first named for good, and who was accused only for a while."""
        began = self.beginning(reports)
        self.named, self.withdrawn = {}, []
        last = self.accused(reports[-1])
        first = {}
        for report in reports:
            # Names may come later than the suspicion.
            named = [entry for entry in report.get("suspects", []) if entry["frames"]]
            accused = self.accused({"suspects": named})
            at = (moment(report["time"]) - began).total_seconds()
            for key in accused:
                first.setdefault(key, at)
        for (name, what), at in first.items():
            if self.guilty.get(name) == what:
                self.named[name] = at
            elif name not in self.guilty and (name, what) not in last:
                self.withdrawn.append(f"{name} ({what}) at {at:.0f} s")

    @staticmethod
    def beginning(reports):
        """The first allocation, as far as the reports tell."""
        seen = [moment(site["first_seen"]) for report in reports for site in report.get("sites", [])]
        return min(seen, default=moment(reports[0]["time"]))

    def compare(self, judged, live):
        """What a recording and the trace that wrote it say differently."""
        file, trace = self.verdicts(judged), self.verdicts(live)
        differences = []
        for key in sorted(file.keys() | trace.keys()):
            if file.get(key) != trace.get(key):
                told = [" ".join(sorted(words.get(key, {"nothing"}))) for words in (file, trace)]
                differences.append(f"{key[0]} ({key[1]}): file {told[0]}, trace {told[1]}")
        return differences

    @property
    def unfair_words(self):
        """Verdicts of healthy functions that are not among the fair ones; accusations are counted elsewhere."""
        unfair = []
        for (name, _), words in sorted(self.words.items()):
            odd = words - set(self.healthy.get(name, words)) - {"leak"}
            if odd:
                unfair.append(f"{name} {' '.join(sorted(odd))}")
        return unfair

    @property
    def passed(self):
        return not (self.missed or self.false_alarms or self.differs)
