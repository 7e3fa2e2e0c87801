"""pytest plugin: measures the GPU memory of tests, with limits and a baseline.

Everything is off without ``--vramscope``. With pytest-xdist the workers use the collector of the main process.
"""

import json
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from vramscope import _collector, _keepers
from vramscope._format import format_size, parse_size
from vramscope._measure import Measurement, measure

_BASELINE = ".vramscope-baseline.json"
_SHOWN_SITES = 5
#: The measurement of a test, and the lines about what it kept.
_KEY = pytest.StashKey[tuple[Measurement, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("vramscope", "GPU memory of tests")
    group.addoption("--vramscope", action="store_true", help="measure the GPU memory of each test, and enforce its limits")
    group.addoption(
        "--vramscope-baseline", metavar="FILE", default=_BASELINE, help=f"peak and kept memory of each test [default: {_BASELINE}]"
    )
    group.addoption("--vramscope-update-baseline", action="store_true", help="write the measured values to the baseline")
    group.addoption(
        "--vramscope-fail-on-increase",
        metavar="SIZE",
        nargs="?",
        const="1 MiB",
        help="fail a test whose peak or kept memory exceeds the baseline by more than SIZE [default: 1 MiB]",
    )
    group.addoption(
        "--vramscope-why",
        action="store_true",
        help="show the Python references that keep the memory of each test alive, not only of failed tests",
    )
    group.addoption("--vramscope-record", metavar="FILE", help="record all CUDA memory calls of the tests to FILE")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Starts the collector before a conftest.py can initialize CUDA."""
    options = early_config.known_args_namespace
    if getattr(options, "vramscope", False):
        # Workers of pytest-xdist use the collector of the main process.
        record = None if _collector.run_dir() else getattr(options, "vramscope_record", None)
        _start(record)


def _start(record: str | None) -> None:
    try:
        _collector.start(record=record)
        _collector.prepare()
    except _collector.VramscopeError as error:
        raise pytest.UsageError(f"--vramscope: {error}") from error


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers, and the plugin if it is requested."""
    config.addinivalue_line(
        "markers", "gpu_peak(size): fail if the GPU memory of the test rises by more than size, such as '2 GiB'; --vramscope"
    )
    config.addinivalue_line(
        "markers",
        "gpu_leaks(size, warmup=0, objects=False): fail if the test keeps more than size of GPU memory, after warmup runs; "
        "with objects, also if it keeps CUDA objects; --vramscope",
    )
    if not config.getoption("vramscope"):
        needs = ("vramscope_update_baseline", "vramscope_fail_on_increase", "vramscope_record", "vramscope_why")
        for name in needs:
            if config.getoption(name):
                raise pytest.UsageError(f"--{name.replace('_', '-')} requires --vramscope")
        return
    is_worker = hasattr(config, "workerinput")
    if config.getoption("vramscope_record") and not is_worker and not _collector.is_own():
        raise pytest.UsageError("--vramscope-record: pytest runs under `vramscope run`; use its option --record")
    _start(None)
    config.pluginmanager.register(_Plugin(config), "vramscope-session")


class _Limits:
    """Limits of a test."""

    def __init__(self, item: pytest.Item) -> None:
        self.peak: int | None = None
        self.kept: int | None = None
        self.warmup = 0
        self.objects = False
        try:
            peak = item.get_closest_marker("gpu_peak")
            if peak is not None:
                (size,) = peak.args
                self.peak = parse_size(size)
            leaks = item.get_closest_marker("gpu_leaks")
            if leaks is not None:
                self._read_leaks(*leaks.args, **leaks.kwargs)
        except (TypeError, ValueError) as error:
            pytest.fail(f"marker gpu_peak or gpu_leaks: {error}", pytrace=False)

    def _read_leaks(self, size: int | str = 0, *, warmup: int = 0, objects: bool = False) -> None:
        self.kept, self.warmup, self.objects = parse_size(size), int(warmup), objects

    def failures(self, result: Measurement) -> Iterable[str]:
        """Returns the limits that the test exceeds."""
        if self.peak is not None and result.peak_increase_bytes > self.peak:
            yield f"GPU memory rose by {format_size(result.peak_increase_bytes)}; the limit is {format_size(self.peak)} (gpu_peak)"
        if self.kept is not None and result.kept_bytes > self.kept:
            yield f"{format_size(result.kept_bytes)} of GPU memory kept; the limit is {format_size(self.kept)} (gpu_leaks)"
        if self.objects and result.kept_objects > 0:
            yield f"CUDA objects kept: {result.kept_objects} (gpu_leaks with objects)"


class _Baseline:
    """Peak and kept memory of tests, in a JSON file."""

    def __init__(self, path: Path, slack: int | None) -> None:
        self.path = path
        self.slack = slack
        self.tests: dict[str, dict[str, int]] = {}
        try:
            self.tests = json.loads(path.read_text())["tests"]
        except FileNotFoundError:
            if slack is not None:
                raise pytest.UsageError(f"{path}: not found; create it with --vramscope-update-baseline") from None
        except (OSError, ValueError, KeyError) as error:
            raise pytest.UsageError(f"{path}: not a baseline of vramscope: {error}") from error

    def failures(self, test: str, result: Measurement) -> Iterable[str]:
        """Returns the values of the baseline that a test exceeds."""
        known = self.tests.get(test)
        if self.slack is None or known is None:
            return
        for name, value in _values(result).items():
            before = known.get(name, 0)
            if value > before + self.slack:
                yield f"{name.removesuffix('_bytes')} memory increased from {format_size(before)} to {format_size(value)}"

    def write(self, tests: dict[str, dict[str, int]]) -> None:
        """Writes the baseline; tests that did not run keep their values."""
        content = json.dumps({"version": 1, "tests": dict(sorted({**self.tests, **tests}.items()))}, indent=1)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        temporary.write_text(content + "\n")
        temporary.replace(self.path)


def _kept(result: Measurement, with_references: bool) -> list[str]:
    """Returns the sites whose memory a test kept, and the Python references that keep it alive."""
    sites = result.kept[:_SHOWN_SITES]
    if not with_references or not sites:
        return [str(site) for site in sites]
    answers, _ = _keepers.find([list(site.addresses) for site in sites])
    lines = []
    for site, answer in zip(sites, answers, strict=True):
        lines.append(str(site))
        lines += [f"{'':>10}  kept by {keeper}" for keeper in answer.keepers[:_SHOWN_SITES]]
    return lines


def _values(result: Measurement) -> dict[str, int]:
    return {"peak_bytes": result.peak_increase_bytes, "kept_bytes": result.kept_bytes}


class _Plugin:
    """Measures tests, in the main process or in the workers of pytest-xdist, and collects the results in the main process."""

    def __init__(self, config: pytest.Config) -> None:
        increase = config.getoption("vramscope_fail_on_increase")
        try:
            slack = None if increase is None else parse_size(increase)
        except ValueError as error:
            raise pytest.UsageError(f"--vramscope-fail-on-increase: {error}") from error
        path = config.rootpath / config.getoption("vramscope_baseline")
        self.baseline = _Baseline(path, slack)
        self.updates = bool(config.getoption("vramscope_update_baseline"))
        self.why = bool(config.getoption("vramscope_why"))
        self.is_worker = hasattr(config, "workerinput")
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measures a test without its fixtures."""
        limits = _Limits(item)
        for _ in range(limits.warmup):
            item.runtest()
        block = measure(item.nodeid, collect_garbage=True)
        with block:
            value = yield
        result = block.result
        failures = [*limits.failures(result), *self.baseline.failures(item.nodeid, result)]
        kept = _kept(result, bool(failures) or self.why)
        item.stash[_KEY] = result, kept
        if failures:
            pytest.fail("\n".join([*failures, *kept]), pytrace=False)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds the measurement to the report, which pytest-xdist sends to the main process."""
        report = yield
        measured = item.stash.get(_KEY, None)
        if call.when == "call" and measured is not None:
            result, kept = measured
            values = _values(result)
            report.vramscope = {**values, "exact": result.exact, "kept": kept}  # type: ignore[attr-defined]
            report.user_properties += [(f"vramscope_{name}", value) for name, value in values.items()]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the results."""
        if hasattr(report, "vramscope"):
            self.tests[report.nodeid] = report.vramscope

    def pytest_sessionfinish(self) -> None:
        """Writes the baseline."""
        if self.updates and not self.is_worker:
            self.baseline.write({name: {key: row[key] for key in ("peak_bytes", "kept_bytes")} for name, row in self.tests.items()})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the table."""
        if not self.tests:
            return
        terminalreporter.section("GPU memory")
        terminalreporter.write_line(f"{'peak':>10}  {'kept':>10}  test")
        for name, row in sorted(self.tests.items(), key=lambda entry: -entry[1]["peak_bytes"]):
            note = "" if row["exact"] else "  (not exact: CUDA calls were lost)"
            terminalreporter.write_line(f"{format_size(row['peak_bytes']):>10}  {format_size(row['kept_bytes']):>10}  {name}{note}")
            for site in row["kept"]:
                terminalreporter.write_line(f"{'':>10}  {site}")
        if self.updates:
            terminalreporter.write_line(f"baseline written to {self.baseline.path}")
