"""The scores as Markdown tables."""
import datetime
import os

from lib import machine


def head(vramscope, command):
    yield f"- {machine.output(vramscope, '--version')}, {datetime.date.today().isoformat()}, `{command.strip()}`"
    yield f"- {os.cpu_count()} x {machine.processor()}, Linux {machine.kernel()}, simulated driver"
    yield ""
    yield ("| scenario | half | seed | leaks | suspects | reported after, s | withdrawn | healthy functions | result |")
    yield "|---|---|---:|---|---|---|---|---|---|"


def listed(items):
    return ", ".join(items) or "-"


def row(result):
    scenario = result.scenario
    suspects = [f"{name} {result.confidence.get(name) or ''}".strip() for name in result.found]
    suspects += [f"**{alarm}**" for alarm in result.false_alarms]
    named = [f"{result.named[name]:.0f}" if name in result.named else "?" for name in result.found]
    problems = []
    if result.missed:
        problems.append(f"**missed {', '.join(result.missed)}**")
    if result.false_alarms:
        problems.append("**false alarm**")
    if result.misnamed:
        problems.append(f"**named {', '.join(result.misnamed)}**")
    if result.split:
        problems.append(f"**several leaks for {', '.join(result.split)}**")
    if result.differs:
        problems.append(f"**file and trace differ: {'; '.join(result.differs)}**")
    if result.lost:
        problems.append(f"{result.lost} records lost")
    verdicts = []
    for name in result.healthy:
        found = sorted({verdict for (function, _), of_function in result.verdicts.items() if function == name
                        for verdict in of_function})
        verdicts.append(f"{name} {' '.join(found) or '-'}")
    verdicts += [f"({other} is unexpected)" for other in result.unexpected_verdicts]
    cells = [scenario["name"], scenario["half"], str(result.seed), listed(result.leaking), listed(suspects), listed(named),
             listed(result.withdrawn), listed(verdicts), listed(problems) if problems else "ok"]
    return f"| {' | '.join(cells)} |"


def totals(title, halves):
    yield ""
    yield (f"| {title} | runs | leaks | found | missed | healthy functions | false alarms | withdrawn | precision | recall "
           "| reported after, median s |")
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    groups = dict(sorted(halves.items(), reverse=True))
    if len(groups) > 1:
        groups["all"] = [result for group in halves.values() for result in group]
    for name, results in groups.items():
        found, missed, alarms, healthy, withdrawn = (
            sum(len(getattr(result, field)) for result in results)
            for field in ("found", "missed", "false_alarms", "healthy", "withdrawn"))
        precision = f"{found / (found + alarms):.3f}" if found + alarms else "-"
        recall = f"{found / (found + missed):.3f}" if found + missed else "-"
        times = sorted(result.named[leak] for result in results for leak in result.found if leak in result.named)
        median = f"{times[len(times) // 2]:.1f}" if times else "-"
        yield (f"| {name} | {len(results)} | {found + missed} | {found} | {missed} | {healthy} | {alarms} "
               f"| {withdrawn} | {precision} | {recall} | {median} |")
