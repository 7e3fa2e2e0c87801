"""The results of the bench as Markdown."""
import datetime
import os
import platform
import subprocess


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
            return f"{len(names)} x {names[0]}"
    except (OSError, IndexError):
        return f"{os.cpu_count()} processors"


def head(vramscope, command):
    version = subprocess.run([vramscope, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    yield f"- {version}, {datetime.date.today().isoformat()}, `{command.strip()}`"
    yield f"- {processor()}, Linux {platform.release()}, simulated driver"
    yield ""
    yield ("| scenario | half | seed | leaks | accused | named after, s | accused for a while | healthy functions | result |")
    yield "|---|---|---:|---|---|---|---|---|---|"


def listed(items):
    return ", ".join(items) or "-"


def row(result):
    scenario = result.scenario
    accused = [f"{name} {result.sureness.get(name) or ''}".strip() for name in result.found]
    accused += [f"**{alarm}**" for alarm in result.false_alarms]
    named = [f"{result.named[name]:.0f}" if name in result.named else "?" for name in result.found]
    verdict = []
    if result.missed:
        verdict.append(f"**missed {', '.join(result.missed)}**")
    if result.false_alarms:
        verdict.append("**false alarm**")
    if result.differs:
        verdict.append(f"**file and trace differ: {'; '.join(result.differs)}**")
    if result.lost:
        verdict.append(f"{result.lost} records lost")
    words = []
    for name in result.healthy:
        said = sorted({word for (place, _), told in result.words.items() if place == name for word in told})
        words.append(f"{name} {' '.join(said) or '-'}")
    words += [f"({odd} is no fair word)" for odd in result.unfair_words]
    cells = [scenario["name"], scenario["half"], str(result.seed), listed(result.guilty), listed(accused), listed(named),
             listed(result.withdrawn), listed(words), listed(verdict) if verdict else "ok"]
    return f"| {' | '.join(cells)} |"


def totals(halves):
    yield ""
    yield ("| half | runs | leaks | found | missed | healthy functions | false alarms | accused for a while | precision | recall "
           "| named after, median s |")
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    groups = dict(sorted(halves.items(), reverse=True))
    if len(groups) > 1:
        groups["all"] = [result for group in halves.values() for result in group]
    for name, results in groups.items():
        def total(field):
            return sum(len(getattr(result, field)) for result in results)
        found, missed, alarms = total("found"), total("missed"), total("false_alarms")
        precision = f"{found / (found + alarms):.3f}" if found + alarms else "-"
        recall = f"{found / (found + missed):.3f}" if found + missed else "-"
        times = sorted(result.named[leak] for result in results for leak in result.found if leak in result.named)
        median = f"{times[len(times) // 2]:.1f}" if times else "-"
        yield (f"| {name} | {len(results)} | {found + missed} | {found} | {missed} | {total('healthy')} | {alarms} "
               f"| {total('withdrawn')} | {precision} | {recall} | {median} |")
