"""Compares reported values with expected ones, as rows of a table."""
import hashlib
import os

from lib.oracle import peak_bounds


def check(value, expected, reported, note=""):
    """Returns a row. `expected` is a value, or a pair of bounds."""
    if isinstance(expected, (list, tuple)):
        least, most = expected
        if least == most:
            return check(value, least, reported, note)
        verdict = "within" if least <= reported <= most else "off"
        off_by = 0 if verdict == "within" else (reported - most if reported > most else reported - least)
        return {"value": value, "expected": [least, most], "reported": reported, "verdict": verdict, "off_by": off_by,
                "note": note}
    verdict = "exact" if expected == reported else "off"
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (expected, reported))
    return {"value": value, "expected": expected, "reported": reported, "verdict": verdict,
            "off_by": reported - expected if numbers else None, "note": note}


def bounded(value, expected, least, most):
    """Returns a row in which vramscope reports bounds, which must include the expected value."""
    verdict = "within" if least <= expected <= most else "off"
    return {"value": value, "expected": expected, "reported": [least, most], "verdict": verdict,
            "off_by": 0 if verdict == "within" else min(most - expected, least - expected, key=abs),
            "note": "calls of several threads overlapped"}


def report_rows(report):
    """Returns the rows that every run has."""
    return [check("report is exact", True, report["exact"]),
            check("lost events", 0, report["lost_events"])]


def _listed(process):
    """Returns every live allocation, if the report lists them all."""
    found = [(a["address"], a["bytes"], t["name"]) for t in process["threads"] for a in t["allocations"]]
    return found if len(found) == process["live_allocations"] else None


def _threads(process):
    return {thread["tid"]: thread for thread in process["threads"]}


def _peak(process, expected):
    if "peak_bounds" in process:
        return bounded("peak bytes", expected, *peak_bounds(process))
    return check("peak bytes", expected, process["peak_bytes"])


def with_oracle(process, oracle):
    """Returns the rows of a process against the oracle of the simulated driver."""
    rows = [
        check("live bytes", oracle["live_bytes"], process["live_bytes"]),
        check("live allocations", len(oracle["live"]), process["live_allocations"]),
        _peak(process, oracle["peak_bytes"]),
        check("allocations", oracle["allocations"], process["allocations_total"]),
        check("frees", oracle["frees"], process["frees_total"]),
        check("failed allocations", oracle["failed_allocations"], process["failed_allocations"]),
    ]
    sums = {}
    for one in oracle["live"]:
        sums[one["thread"]] = sums.get(one["thread"], 0) + one["bytes"]
    reported = _threads(process)
    if len(sums) > 1:
        names = {tid: reported[tid]["name"] if tid in reported else f"thread {tid}" for tid in sums}
        for tid in sorted(sums, key=lambda tid: (names[tid], tid)):
            rows.append(check(f"live bytes of {names[tid]}", sums[tid], reported.get(tid, {}).get("live_bytes", 0)))
    listed = _listed(process)
    if listed is not None:
        ours = {(address, size) for address, size, _ in listed}
        theirs = {(one["address"], one["bytes"]) for one in oracle["live"]}
        rows.append(check("live allocations of another address or size", 0, len(ours ^ theirs)))
    return rows


def _by_libraries(process):
    """Returns live bytes, allocations and frees of libraries other than PyTorch's own.

    The requester is the first library on the stack that is neither the driver nor the runtime.
    """
    live = allocations = frees = 0
    for site in process["sites"]:
        modules = [os.path.basename(frame["module"] or "") for frame in site.get("frames", [])]
        requester = next((m for m in modules if m and not m.startswith(("libcuda.", "libcudart"))), "")
        if not requester or requester.startswith("libc10_cuda"):
            continue
        for kind in (kind for kind in site["kinds"] if kind["kind"] == "device"):
            live += kind["live_bytes"]
            allocations += kind["allocations_total"]
            frees += kind["frees_total"]
    return live, allocations, frees


def with_cache(process, account):
    """Returns the rows of a process against PyTorch's statistics of its caching allocator."""
    theirs = account["torch"]
    live, allocations, frees = _by_libraries(process)
    libraries = f"plus {live:,} bytes by libraries" if live or allocations else ""
    addresses = {hex(address) for address, _ in account["segments"]}
    listed = _listed(process) or []
    at_segments = [(address, size) for address, size, _ in listed if address in addresses]
    lines = lambda pairs: "".join(f"{a} {b}\n" for a, b in sorted(pairs))
    theirs_lines = lines((hex(address), size) for address, size in account["segments"])
    return [
        check("reserved bytes", theirs["reserved"], sum(size for _, size in at_segments), "at the segments' addresses"),
        check("reserved bytes, by stacks", theirs["reserved"], process["live_bytes"] - live, libraries),
        check("segments", theirs["segments"], len(at_segments), "at the segments' addresses"),
        check("each segment's address and size", _digest(theirs_lines), _digest(lines(at_segments))),
        check("peak of reserved bytes", theirs["reserved_peak"], process["peak_bytes"] - live, libraries),
        check("device allocations", theirs["device_allocs"], process["allocations_total"] - allocations,
              f"plus {allocations} by libraries" if allocations else ""),
        check("device frees", theirs["device_frees"], process["frees_total"] - frees,
              f"plus {frees} by libraries" if frees else ""),
        check("failed allocations", theirs["alloc_retries"] + theirs["ooms"], process["failed_allocations"],
              "PyTorch's retries and errors"),
    ]


def _own_peak(process, least, most):
    """Returns the row of the peak. If calls of several threads overlap, the program and vramscope can only bound it."""
    low, high = peak_bounds(process)
    # The reported value that is nearest to the program's own bounds.
    nearest = min(max(least, low), high)
    return check("peak bytes", [least, most], nearest, "bounds: calls of several threads overlapped" if least < most else "")


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_cache(process, account):
    """Returns the rows of a process without a caching allocator against its own account: each tensor is a driver call."""
    own = account["own"]
    rows = [
        check("live bytes", own["live_bytes"], process["live_bytes"]),
        check("live allocations", own["live_allocations"], process["live_allocations"]),
        _own_peak(process, own["peak_at_least"], own["peak_at_most"]),
        check("allocations", own["allocations"], process["allocations_total"]),
        check("frees", own["frees"], process["frees_total"]),
        check("failed allocations", 0, process["failed_allocations"]),
    ]
    if len(own["threads"]) > 1:
        reported = {thread["name"]: thread for thread in process["threads"]}
        for name in sorted(own["threads"]):
            expected = own["threads"][name]["live_bytes"]
            rows.append(check(f"live bytes of {name}", expected, reported.get(name, {}).get("live_bytes", 0)))
    listed = _listed(process)
    if listed is not None:
        pairs = sorted((int(address, 16), size) for address, size, _ in listed)
        text = "".join(f"{address:#x} {size}\n" for address, size in pairs)
        rows.append(check("each allocation's address and size", own["live_sha256"][:16], _digest(text)))
    return rows


def processes(traced):
    """Returns the rows of every process of a run, including missing ones."""
    report = traced["reports"][-1]
    expected = traced["oracle"] or traced["accounts"]
    reported = {process["pid"]: process for process in report["processes"]}
    rows = report_rows(report)
    if not expected:
        return [*rows, check("programs that printed their account", "at least one", "none")]
    rows.append(check("processes", len(expected), len(reported)))
    for number, pid in enumerate(sorted(expected), 1):
        label = f"process {number}: " if len(expected) > 1 else ""
        if pid not in reported:
            rows.append(check(f"{label}reported", True, False))
            continue
        account = expected[pid]
        if traced["oracle"]:
            found = with_oracle(reported[pid], account)
        elif account["torch"] is not None:
            found = with_cache(reported[pid], account)
        else:
            found = without_cache(reported[pid], account)
        rows += [{**row, "value": label + row["value"]} for row in found]
    return rows


def largest_allocation(traced, size, thread):
    """Returns the rows of an anomaly: size and thread of the largest allocation."""
    found = [(allocation["bytes"], one["name"], allocation["address"])
             for process in traced["reports"][-1]["processes"]
             for one in process["threads"] for allocation in one["allocations"]]
    largest = max(found, default=(0, "none", ""))
    return [check("largest allocation", size, largest[0]), check("its thread", thread, largest[1])]


def verdict(rows):
    """Returns the worst verdict of the rows."""
    words = {row["verdict"] for row in rows}
    return "off" if "off" in words else "within" if "within" in words else "exact"
