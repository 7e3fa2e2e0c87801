"""Compares a last report with the ledgers of the simulated driver: equal where the report is exact, within its bounds
where it is not."""
from truth import NUMBERS, entry

TENSORS = [("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"), ("peak_bytes", "peak"),
           ("live_blocks", "blocks"), ("allocations_total", "given"), ("frees_total", "taken"), ("ooms_total", "refused")]


def sums(rows, key, value):
    """Sums by a key, without those of nothing."""
    found = {}
    for row in rows:
        found[key(row)] = found.get(key(row), 0) + row[value]
    return {name: total for name, total in found.items() if total}


def unlike(what, ours, truth):
    """The difference in words, if there is one."""
    if ours == truth:
        return []
    if isinstance(ours, dict):
        names = sorted({*ours, *truth}, key=repr)
        parts = [f"{name}: {ours.get(name)}, truth {truth.get(name)}" for name in names if ours.get(name) != truth.get(name)]
        return [f"{what}: {'; '.join(parts[:4])}"]
    return [f"{what} {ours}, truth {truth}"]


def live(process, oracle):
    ours = sorted((entry(a, t["tid"]) for t in process["threads"] for a in t["allocations"]), key=repr)
    truth = sorted((entry(a, a["thread"]) for a in oracle["live"]), key=repr)
    if len(ours) < process["live_allocations"]:
        return []  # of many processes that ended the last report has no lists
    if ours == truth:
        return []
    more, less = [a for a in ours if a not in truth], [a for a in truth if a not in ours]
    return [f"live list: {len(ours)} entries, truth {len(truth)}; not in truth {more[:3]}; missing {less[:3]}"]


def peak(what, row, truth):
    """Overlapping calls of several threads leave the peak open, between two bounds."""
    both = row.get("peak_bounds", {"min_bytes": row["peak_bytes"], "max_bytes": row["peak_bytes"]})
    if both["min_bytes"] <= truth <= both["max_bytes"]:
        return []
    return [f"{what} {both['min_bytes']}..{both['max_bytes']}, truth {truth}"]


def devices(process, oracle):
    ours = {d["device"]: d["live_bytes"] for d in process["devices"] if d["live_bytes"]}
    truth = {n: size for n, size in enumerate(oracle["live_bytes_by_device"]) if size}
    found = unlike("live_bytes by device", ours, truth)
    rows = {d["device"]: d for d in process["devices"] if d["device"] is not None}
    for number, truth in enumerate(oracle["peak_bytes_by_device"]):
        found += peak(f"peak_bytes of device {number}", rows.get(number, {"peak_bytes": 0}), truth)
    return found


def kinds(process, oracle):
    counts = sums(({**row, "one": 1} for row in oracle["live"]), lambda row: row["kind"], "one")
    found = unlike("live_allocations_by_kind", process["live_allocations_by_kind"], counts)
    # How much imported memory is, only its exporter knows.
    own = [row for row in oracle["live"] if row["kind"] != "imported"]
    ours = {kind: size for kind, size in process["live_bytes_by_kind"].items() if kind != "imported" and size}
    return found + unlike("live_bytes_by_kind", ours, sums(own, lambda row: row["kind"], "bytes"))


def objects(process, oracle, single_thread):
    # With several threads the order of two overlapping calls is open, and with it the peak.
    fields = ["live", "created", "destroyed", "released"] + (["peak"] if single_thread else [])
    table = lambda rows: {row["kind"]: [row[f] for f in fields] for row in rows if row["created"]}  # noqa: E731
    return unlike(f"objects ({', '.join(fields)})", table(process["objects"]), table(oracle["objects"]))


def failures(process, oracle):
    """What is reported, for the functions that are traced."""
    key = lambda row: (row["function"], row["code"])  # noqa: E731
    ours, truth = sums(process["failed_calls"], key, "count"), sums(oracle["errors"], key, "count")
    return unlike("failed_calls", ours, {name: truth.get(name, 0) for name in ours})


def sites(process):
    """Sites add up to their process."""
    if process["sites_total"] > len(process["sites"]):
        return []
    return unlike("live_bytes of all sites", sum(site["live_bytes"] for site in process["sites"]), process["live_bytes"])


def work(process, oracle, by_kernel):
    """Launches and copies, where they are counted. Not every way to attach distinguishes kernels that have the same
    handle one after the other."""
    if "kernels" not in process:
        return []
    kernels = [row for row in process["kernels"] if row["kind"] == "kernel"]
    found = []
    # Where not every result is checked, a launch that failed may count as one.
    failed = any(row["failed"] for row in oracle["launches"])
    for field in () if failed else ("launches", "captured"):
        ours = sums(kernels, lambda row: row["symbol"] if by_kernel else "all", field)
        truth = sums(oracle["launches"], lambda row: row["name"] if by_kernel else "all", field)
        found += unlike(f"{field} by kernel", ours, truth)
    graphs = sums((row for row in process["kernels"] if row["kind"] == "graph"), lambda row: row["handle"], "launches")
    found += unlike("launches of graphs", graphs, sums(oracle["graph_launches"], lambda row: row["exec"], "launches"))
    unknown = sum(row["calls"] for row in process["copies"] if row["direction"] == "unknown")
    if unknown:
        found.append(f"the direction of {unknown} copies is unknown")
    # They are somewhere among the others of their mode.
    way = lambda row: ("any" if unknown else row["direction"], row["mode"])  # noqa: E731
    for field in ("calls", "bytes"):
        found += unlike(f"{field} of copies", sums(process["copies"], way, field), sums(oracle["copies"], way, field))
    return found


def tensors(process, truth):
    """Blocks of PyTorch's cache."""
    cache = process.get("torch", {})
    if not truth or not cache.get("exact") or not cache["devices"]:
        return []
    ours, theirs = cache["devices"][0], truth["devices"][0]
    found = []
    for mine, name in TENSORS:
        found += unlike(f"torch {mine}", ours[mine], theirs[name])
    return found


def exact(process, oracle, single_thread, by_kernel, torch=None):
    """Differences of a process that is said to be exact."""
    found = live(process, oracle) + peak("peak_bytes", process, oracle["peak_bytes"]) + devices(process, oracle) + kinds(process, oracle)
    for mine, theirs in NUMBERS:
        found += unlike(mine, process[mine], oracle[theirs])
    if not process.get("lost_objects"):
        found += objects(process, oracle, single_thread)
    return found + failures(process, oracle) + sites(process) + work(process, oracle, by_kernel) + tensors(process, torch)


def bounded(process, oracle, unattributed):
    """Differences of one that is not: the truth is between the bounds, and received and lost add up to it. Some of what was
    lost may be known of no process: that may be of this one."""
    said = process["uncertainty"]
    if said["before_trace"]:
        return []
    low, high, truth = said["live_bytes_min"], said["live_bytes_max"], oracle["live_bytes"]
    found = [] if low <= truth <= high else [f"live_bytes {low}..{high}, truth {truth}"]
    for what, calls, lost in CALLS:
        ours, truth = process["received_calls"][what], oracle[calls]
        if not ours + said[lost] <= truth <= ours + said[lost] + unattributed[lost]:
            found.append(f"{what}: {ours} received, {said[lost]} lost, {unattributed[lost]} lost of any, truth {truth}")
    return found


# Classes of calls: of what was received, of the oracle, of what was lost.
CALLS = (("allocations", "allocating_calls", "lost_allocations"), ("frees", "freeing_calls", "lost_frees"))


def received(process, oracle, what, calls):
    """Calls of a class that were received: all of them where nothing was lost."""
    return process["received_calls"][what] if "received_calls" in process else oracle[calls]


def unattributed(report):
    """What was lost and is known of no process."""
    found = {}
    for name in ("lost_allocations", "lost_frees", "lost_failures"):
        known = sum(process.get("uncertainty", {}).get(name, 0) for process in report["processes"])
        found[name] = report.get("uncertainty", {}).get(name, 0) - known
    return found


def sum_of(report, pairs):
    """What was received of all these processes and what was lost of any make up the truth at least. Others on the machine
    may have lost something, too."""
    found = []
    for what, calls, lost in CALLS:
        ours = sum(received(process, oracle, what, calls) for process, oracle in pairs)
        truth = sum(oracle[calls] for _, oracle in pairs)
        missing = report.get("uncertainty", {}).get(lost, 0)
        if ours + missing < truth:
            found.append(f"{what} of all: {ours} received, {missing} lost, truth {truth}")
    return found


def totals(report):
    """A report is the sum of its processes, and as exact as they are."""
    found = []
    running = [process for process in report["processes"] if process.get("end_reason") is None]
    for field in ("live_bytes", "live_allocations"):
        found += unlike(f"{field} of the report", report[field], sum(p[field] for p in running))
    kept = sum(p["live_bytes"] for p in report["processes"]) - report["live_bytes"]
    found += unlike("not_freed_bytes of the report", report["not_freed_bytes"], kept)
    if report["exact"] and not all(process["exact"] for process in report["processes"]):
        found.append("the report is exact, and one of its processes is not")
    if report["exact"] and report["lost_events"]:
        found.append(f"the report is exact, and {report['lost_events']} events were lost")
    return found
