"""Measurements of a block of code or of a function."""

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from vramscope import _collector
from vramscope._format import chart, format_size

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SHOWN_SITES = 10


@dataclass(frozen=True)
class Frame:
    """A frame of a call stack."""

    function: str
    file: str | None
    line: int | None
    module: str | None
    language: str


@dataclass(frozen=True)
class Site:
    """Memory, tensors or CUDA objects that one line of the program allocated and did not free."""

    #: Line and function: ``train.py:12 step``.
    location: str
    #: ``device_memory``, ``tensors``, ``managed_memory``, ``host_memory`` or ``objects``.
    resource: str
    #: Kind of memory or object, such as ``device``, ``pinned`` or ``stream``.
    kind: str
    #: Bytes; 0 for objects.
    bytes: int
    #: Number of allocations or objects.
    count: int
    #: Call stack, innermost frame first.
    frames: tuple[Frame, ...]
    #: Addresses of the newest allocations, at most 64.
    addresses: tuple[int, ...]

    @staticmethod
    def _parse(row: dict[str, Any]) -> "Site":
        frames = (
            Frame(frame["function"], frame.get("file"), frame.get("line"), frame.get("module"), frame["language"])
            for frame in row["frames"]
        )
        addresses = tuple(row["addresses"])
        return Site(row["location"], row["resource"], row["kind"], row["bytes"], row["count"], tuple(frames), addresses)

    def __str__(self) -> str:
        size = "" if self.resource == "objects" else format_size(self.bytes)
        return f"{size:>10}  {self.count:>6}  {self.kind:<8}  {self.location}"


@dataclass(frozen=True)
class Tensors:
    """Bytes that tensors use in PyTorch's cache."""

    before_bytes: int
    after_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Measurement:
    """GPU memory of this process, of all its threads, while a block of code ran."""

    name: str
    seconds: float
    #: Whether all CUDA calls of the process were seen, so that all values are exact.
    exact: bool
    #: Live device memory of the process at the start and at the end.
    live_before_bytes: int
    live_after_bytes: int
    #: Peak of the live device memory of the process.
    peak_bytes: int
    #: Lower and upper bound of the peak, if overlapping calls of several threads leave it undetermined.
    peak_bounds: tuple[int, int] | None
    #: Tensors, if the program uses PyTorch's caching allocator.
    tensors: Tensors | None
    #: Device memory and tensors that the block allocated and did not free. Memory that caches of frameworks hold is not
    #: included.
    kept_bytes: int
    #: The same for host memory that is pinned or registered.
    kept_host_bytes: int
    #: Number of CUDA objects (streams, events, ...) that the block created and did not destroy.
    kept_objects: int
    #: Memory that caches of frameworks allocated in the block and still hold.
    cached_bytes: int
    #: Lines that allocated the kept memory and objects, largest first.
    kept: tuple[Site, ...]
    #: Nanoseconds since the start, and the live device memory from then on; at most 513 points, each the maximum of its time.
    timeline: tuple[tuple[int, int], ...]

    @staticmethod
    def _parse(name: str, answer: dict[str, Any]) -> "Measurement":
        bounds, tensors = answer.get("peak_bounds"), answer.get("tensors")
        return Measurement(
            name=name,
            seconds=answer["duration_ns"] / 1e9,
            exact=answer["exact"],
            live_before_bytes=answer["live_before_bytes"],
            live_after_bytes=answer["live_after_bytes"],
            peak_bytes=answer["peak_bytes"],
            peak_bounds=None if bounds is None else (bounds[0], bounds[1]),
            tensors=None if tensors is None else Tensors(**tensors),
            kept_bytes=answer["kept_bytes"],
            kept_host_bytes=answer["kept_host_bytes"],
            kept_objects=answer["kept_objects"],
            cached_bytes=answer["cached_bytes"],
            kept=tuple(Site._parse(row) for row in answer["kept"]),
            timeline=tuple((at, size) for at, size in answer["timeline"]),
        )

    @property
    def peak_increase_bytes(self) -> int:
        """Peak minus the level at the start.

        In a program with PyTorch's caching allocator, of tensors: its cache keeps freed memory, so that the device memory of
        the process depends on what ran before.
        """
        if self.tensors is not None:
            return self.tensors.peak_bytes - self.tensors.before_bytes
        return self.peak_bytes - self.live_before_bytes

    def summary(self) -> str:
        """Returns one line."""
        text = f"{self.name}: peak {format_size(self.peak_bytes)} (+{format_size(self.peak_increase_bytes)})"
        text += f", kept {format_size(self.kept_bytes)}"
        if self.kept_host_bytes:
            text += f" and {format_size(self.kept_host_bytes)} of host memory"
        if self.kept_objects:
            text += f" and {self.kept_objects} CUDA object{'' if self.kept_objects == 1 else 's'}"
        if self.cached_bytes:
            text += f", cached {format_size(self.cached_bytes)}"
        return text + f", {self.seconds:.3g} s" + ("" if self.exact else " (not exact: CUDA calls were lost)")

    def __str__(self) -> str:
        return "\n".join([self.summary(), *(str(site) for site in self.kept[:_SHOWN_SITES]), *self._unlisted()])

    def _unlisted(self) -> list[str]:
        more = len(self.kept) - _SHOWN_SITES
        return [f"{'':>10}  {more} more in .kept"] if more > 0 else []

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        def cells(site: Site) -> str:
            size = "" if site.resource == "objects" else format_size(site.bytes)
            return "".join(f"<td>{escape(text)}</td>" for text in (size, str(site.count), site.kind, site.location))

        rows = "".join(f"<tr>{cells(site)}</tr>" for site in self.kept[:_SHOWN_SITES])
        head = "<tr><th>kept</th><th>count</th><th>kind</th><th>line</th></tr>"
        table = f"<table>{head}{rows}</table>" if rows else ""
        return f"<div>{escape(self.summary())}</div>{chart(self.timeline, self.name)}{table}"


class measure:
    """Context manager that measures the GPU memory of a block of code.

    The block includes all threads of the process. Blocks may be nested and may overlap. Entering and leaving a block
    waits until the collector has read all calls before.

    >>> with measure("step") as block:
    ...     pass
    >>> block.result.kept_bytes
    0

    :param name: name in reports.
    :param collect_garbage: run Python's garbage collector at the start and at the end, so that unreachable cycles do not count
        as kept.
    """

    def __init__(self, name: str = "block", *, collect_garbage: bool = False) -> None:
        self.name = name
        self._collect_garbage = collect_garbage
        self._connection: _collector.Connection | None = None
        self._id = 0
        self._result: Measurement | None = None

    @property
    def result(self) -> Measurement:
        """The measurement; available after the end of the block."""
        if self._result is None:
            raise _collector.VramscopeError(f"{self.name}: the block has not ended")
        return self._result

    def __enter__(self) -> "measure":  # noqa: PYI034
        if self._connection is not None:
            raise _collector.VramscopeError(f"{self.name}: the block is already being measured; create another object")
        if self._collect_garbage:
            gc.collect()
        connection = _collector.connect()
        try:
            self._id = connection.request("begin")["id"]
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._collect_garbage:
            gc.collect()
        connection, self._connection = self._connection, None
        if connection is None:
            raise _collector.VramscopeError(f"{self.name}: the block was not entered")
        try:
            answer = connection.request("end", id=self._id)["measurement"]
            self._result = Measurement._parse(self.name, answer)
        except _collector.VramscopeError:
            # The error of the block is more important.
            if kind is None:
                raise
        finally:
            connection.close()


def _print_report(measurement: Measurement) -> None:
    sys.stderr.write(f"{measurement}\n")


def measured(
    name: str | None = None,
    *,
    collect_garbage: bool = False,
    report: Callable[[Measurement], object] = _print_report,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorator that measures every call of a function, also of a coroutine function.

    :param name: name in reports; by default that of the function.
    :param report: called with the measurement of each call; by default it is written to standard error.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        title = str(name or getattr(function, "__qualname__", "function"))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{title}: a generator cannot be measured; measure the loop that uses it")

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with measure(title, collect_garbage=collect_garbage) as block:
                    value = await function(*args, **kwargs)
                report(block.result)
                return value

            return cast("Callable[_P, _R]", run_async)

        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with measure(title, collect_garbage=collect_garbage) as block:
                value = function(*args, **kwargs)
            report(block.result)
            return value

        return run

    return decorate
