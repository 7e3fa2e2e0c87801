"""Compares a final report with the oracle of the simulated driver.

An exact process must equal its oracle; for others the oracle must be within the bounds.
"""
from lib.oracle import TOTALS, listed_allocations, live_allocations, peak_bounds

# Fields of the PyTorch allocator in a report, and of its oracle.
TENSORS = [("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"), ("peak_bytes", "peak"),
           ("live_blocks", "blocks"), ("allocations_total", "allocations"), ("frees_total", "frees"), ("ooms_total", "ooms")]


def sums(rows, key, value):
    """Returns the sums of a field by a key, without zeros."""
    found = {}
    for row in rows:
        found[key(row)] = found.get(key(row), 0) + row[value]
    return {name: total for name, total in found.items() if total}


def difference(what, ours, expected):
    """Returns the difference as text, in a list that is empty if missing."""
    if ours == expected:
        return []
    if isinstance(ours, dict):
        names = sorted({*ours, *expected}, key=repr)
        parts = [f"{name}: {ours.get(name)}, oracle {expected.get(name)}" for name in names if ours.get(name) != expected.get(name)]
        return [f"{what}: {'; '.join(parts[:4])}"]
    return [f"{what} {ours}, oracle {expected}"]


def live(process, oracle):
    ours, expected = listed_allocations(process), live_allocations(oracle)
    if len(ours) < process["live_allocations"]:
        return []  # the final report does not list the allocations of most exited processes
    if ours == expected:
        return []
    more, less = [a for a in ours if a not in expected], [a for a in expected if a not in ours]
    return [f"live list: {len(ours)} entries, oracle {len(expected)}; not in the oracle {more[:3]}; missing {less[:3]}"]


def peak(name, row, expected):
    """Overlapping calls of several threads leave their order open, so a peak may have bounds."""
    low, high = peak_bounds(row)
    return [] if low <= expected <= high else [f"{name} {low}..{high}, oracle {expected}"]


def devices(process, oracle):
    ours = {d["device"]: d["live_bytes"] for d in process["devices"] if d["live_bytes"]}
    expected = {n: size for n, size in enumerate(oracle["live_bytes_by_device"]) if size}
    found = difference("live_bytes by device", ours, expected)
    rows = {d["device"]: d for d in process["devices"] if d["device"] is not None}
    for number, expected in enumerate(oracle["peak_bytes_by_device"]):
        found += peak(f"peak_bytes of device {number}", rows.get(number, {"peak_bytes": 0}), expected)
    return found


def kinds(process, oracle):
    counts = sums(({**row, "one": 1} for row in oracle["live"]), lambda row: row["kind"], "one")
    found = difference("live_allocations_by_kind", process["live_allocations_by_kind"], counts)
    # Only the exporter knows the size of imported memory.
    own = [row for row in oracle["live"] if row["kind"] != "imported"]
    ours = {kind: size for kind, size in process["live_bytes_by_kind"].items() if kind != "imported" and size}
    return found + difference("live_bytes_by_kind", ours, sums(own, lambda row: row["kind"], "bytes"))


def objects(process, oracle, single_thread):
    # With several threads the order of overlapping calls, and so the peak, is open.
    fields = ["live", "created", "destroyed", "released"] + (["peak"] if single_thread else [])
    table = lambda rows: {row["kind"]: [row[f] for f in fields] for row in rows if row["created"]}
    return difference(f"objects ({', '.join(fields)})", table(process["objects"]), table(oracle["objects"]))


# CUDA_ERROR_DEINITIALIZED: threads that still call the driver while the process exits, after the oracle was written.
DEINITIALIZED = 4


def is_launch(function):
    return function.startswith(("cuLaunch", "cuGraphLaunch"))


def failures(process, oracle):
    """Compares failed calls, for the functions that the report lists.

    Unless the results of all launches are checked, some failed launches are not counted.
    """
    key = lambda row: (row["function"], row["code"])
    ours, expected = sums(process["failed_calls"], key, "count"), sums(oracle["errors"], key, "count")
    unchecked = any(row["checked"] < row["launches"] for row in process.get("kernels", []))
    found = []
    for (function, code), count in ours.items():
        truth = expected.get((function, code), 0)
        few = unchecked and is_launch(function) and count < truth
        if code != DEINITIALIZED and not few:
            found += difference(f"failed_calls of {function} with {code}", count, truth)
    return found


def sites(process):
    """Checks that the sites add up to their process."""
    if process["sites_total"] > len(process["sites"]):
        return []
    return difference("live_bytes of all sites", sum(site["live_bytes"] for site in process["sites"]), process["live_bytes"])


def activity(process, oracle, by_kernel):
    """Compares launches and copies, if they are counted.

    `by_kernel` is false for attach modes that do not distinguish kernels whose handles are reused.
    """
    if "kernels" not in process:
        return []
    kernels = [row for row in process["kernels"] if row["kind"] == "kernel"]
    found = []
    # Unless every result is checked, a failed launch may be counted.
    failed = any(row["failed"] for row in oracle["launches"])
    for field in () if failed else ("launches", "captured"):
        ours = sums(kernels, lambda row: row["symbol"] if by_kernel else "all", field)
        expected = sums(oracle["launches"], lambda row: row["name"] if by_kernel else "all", field)
        found += difference(f"{field} by kernel", ours, expected)
    graphs = sums((row for row in process["kernels"] if row["kind"] == "graph"), lambda row: row["handle"], "launches")
    found += difference("launches of graphs", graphs, sums(oracle["graph_launches"], lambda row: row["exec"], "launches"))
    unknown = sum(row["calls"] for row in process["copies"] if row["direction"] == "unknown")
    if unknown:
        found.append(f"the direction of {unknown} copies is unknown")
    # Copies of unknown direction are among the others of their mode.
    key = lambda row: ("any" if unknown else row["direction"], row["mode"])
    for field in ("calls", "bytes"):
        found += difference(f"{field} of copies", sums(process["copies"], key, field), sums(oracle["copies"], key, field))
    return found


def tensors(process, expected):
    """Compares the blocks of PyTorch's caching allocator."""
    cache = process.get("torch", {})
    if not expected or not cache.get("exact") or not cache["devices"]:
        return []
    ours, theirs = cache["devices"][0], expected["devices"][0]
    found = []
    for mine, name in TENSORS:
        found += difference(f"torch {mine}", ours[mine], theirs[name])
    return found


def exact(process, oracle, single_thread, by_kernel, torch=None):
    """Returns the differences of a process that is reported as exact."""
    found = live(process, oracle) + peak("peak_bytes", process, oracle["peak_bytes"]) + devices(process, oracle) + kinds(process, oracle)
    late = sum(row["count"] for row in process["failed_calls"] if row["code"] == DEINITIALIZED)
    for mine, theirs in TOTALS:
        if mine != "failed_allocations" or not 0 <= process[mine] - oracle[theirs] <= late:
            found += difference(mine, process[mine], oracle[theirs])
    if not process.get("lost_objects"):
        found += objects(process, oracle, single_thread)
    return found + failures(process, oracle) + sites(process) + activity(process, oracle, by_kernel) + tensors(process, torch)


def bounded(process, oracle, unattributed, unreturned):
    """Returns the differences of a process that is not exact.

    The oracle must be within the bounds, and received and lost calls must add up to it. Lost calls that are not
    attributed to a process may belong to this one. `unreturned`: the most calls in which threads were killed; they count
    as lost, also if the driver did not carry them out.
    """
    uncertainty = process["uncertainty"]
    if uncertainty["before_trace"]:
        return []
    low, high, expected = uncertainty["live_bytes_min"], uncertainty["live_bytes_max"], oracle["live_bytes"]
    found = [] if low <= expected <= high else [f"live_bytes {low}..{high}, oracle {expected}"]
    for what, calls, lost in CALLS:
        ours, expected = process["received_calls"][what], oracle[calls]
        if not ours + uncertainty[lost] - unreturned <= expected <= ours + uncertainty[lost] + unattributed[lost]:
            found.append(f"{what}: {ours} received, {uncertainty[lost]} lost, {unattributed[lost]} lost unattributed, oracle {expected}")
    return found


# Names of a class of calls: received, in the oracle, lost.
CALLS = (("allocations", "allocating_calls", "lost_allocations"), ("frees", "freeing_calls", "lost_frees"))


def received(process, oracle, what, calls):
    """Returns the received calls of a class: all of them if nothing was lost."""
    return process["received_calls"][what] if "received_calls" in process else oracle[calls]


def unattributed(report):
    """Returns the lost calls that are not attributed to a process."""
    found = {}
    for name in ("lost_allocations", "lost_frees", "lost_failures"):
        known = sum(process.get("uncertainty", {}).get(name, 0) for process in report["processes"])
        found[name] = report.get("uncertainty", {}).get(name, 0) - known
    return found


def matching(fits):
    """Returns a column for each row of a table of booleans, or None, such that as many rows as possible have one."""
    row_of = {}

    def assign(row, tried):
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in row_of or assign(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(fits)):
        assign(row, set())
    column_of = {row: column for column, row in row_of.items()}
    return [column_of.get(row) for row in range(len(fits))]


def all_received_or_lost(report, pairs):
    """Checks that received and lost calls of all processes are at least those of the oracles.

    The lost ones may include calls of other processes on the machine.
    """
    found = []
    for what, calls, lost in CALLS:
        ours = sum(received(process, oracle, what, calls) for process, oracle in pairs)
        expected = sum(oracle[calls] for _, oracle in pairs)
        missing = report.get("uncertainty", {}).get(lost, 0)
        if ours + missing < expected:
            found.append(f"{what} of all: {ours} received, {missing} lost, oracle {expected}")
    return found


def totals(report):
    """Checks that a report is the sum of its processes, and exact only if all of them are."""
    found = []
    running = [process for process in report["processes"] if process.get("end_reason") is None]
    for field in ("live_bytes", "live_allocations"):
        found += difference(f"{field} of the report", report[field], sum(p[field] for p in running))
    kept = sum(p["live_bytes"] for p in report["processes"]) - report["live_bytes"]
    found += difference("not_freed_bytes of the report", report["not_freed_bytes"], kept)
    if report["exact"] and not all(process["exact"] for process in report["processes"]):
        found.append("the report is exact, but one of its processes is not")
    if report["exact"] and report["lost_events"]:
        found.append(f"the report is exact, but {report['lost_events']} events were lost")
    return found
