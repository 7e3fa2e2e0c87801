"""Finds what keeps GPU memory alive: the shortest chain of Python references from a root to the tensors of an allocation site.

The search goes forward from the roots (globals of modules, locals of running functions, the last exception), breadth first, so
that the first chain to an object is the shortest. It keeps ids, not references, apart from the objects that it visits next.
Objects that are created or moved during the search may be missed.

The interpreter is released every few milliseconds. Between two releases no single operation may take long: large containers are
read in parts, and the ids are kept in many small dictionaries, because a large one is resized and freed in one operation.
"""

import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from types import CellType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

#: The interpreter is released after this time.
_SLICE_SECONDS = 0.01
_PAUSE_SECONDS = 0.001
#: Entries of a container that are read in one operation, which takes about 2 ms.
_MAX_ENTRIES = 50_000
#: Each visited object costs about 130 bytes during the search.
_MAX_OBJECTS = 5_000_000
#: Limit of objects for a list of all objects, which is one operation that takes about 20 ms.
_MAX_LISTED_OBJECTS = 1_000_000
#: Number of dictionaries for ids: a prime, because ids are multiples of 16.
_SHARDS = 4093
_MAX_SECONDS = 30.0
#: Objects between two checks of the time.
_STEP_OBJECTS = 256
_MAX_GRAPH_NODES = 10_000
_CO_OPTIMIZED = 1
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def _is(value: Any, kinds: Any) -> bool:
    """Whether a value is of a type. Unlike ``isinstance``, runs no code of the value: proxies define ``__class__``."""
    return issubclass(type(value), kinds)


@dataclass
class Keeper:
    """References that keep memory of one site alive."""

    #: References from the root, with ``[*]`` for keys and indices: ``__main__.history[*].loss``.
    path: str
    #: The container closest to the tensors that has several entries, such as ``__main__.history``.
    container: str
    #: Its type and number of entries.
    container_type: str
    entries: int
    #: Number of tensors or arrays that are kept this way.
    count: int = 0

    def __str__(self) -> str:
        entries = f", {self.entries} entries" if self.entries > 1 else ""
        return f"{self.path}; {self.container} is a {self.container_type}{entries}"


@dataclass
class Answer:
    """Keepers of the memory of one site."""

    keepers: list[Keeper] = field(default_factory=list)
    #: Only reachable from unreachable cycles: freed when Python collects garbage.
    in_cycles: int = 0
    #: Addresses without a Python object: native code, caches, or the search was incomplete.
    unknown: int = 0


class _Pace:
    """Pauses the search, so that other threads run."""

    def __init__(self) -> None:
        self.start = self.slice = time.thread_time()
        #: Longest CPU time between two releases of the interpreter.
        self.longest_hold = 0.0
        #: Containers that changed while they were read.
        self.changed = 0

    def step(self) -> None:
        if time.thread_time() - self.slice >= _SLICE_SECONDS:
            self.release()

    def release(self) -> None:
        """Releases the interpreter for a short time."""
        self.longest_hold = max(self.longest_hold, time.thread_time() - self.slice)
        time.sleep(_PAUSE_SECONDS)
        self.slice = time.thread_time()

    def is_over(self) -> bool:
        return self.slice - self.start > _MAX_SECONDS

    def referents(self, item: Any) -> Iterable[object]:
        """Returns the objects that an object refers to."""
        if _is(item, _CONTAINERS):
            kind: Any = next(kind for kind in _CONTAINERS if _is(item, kind))
            if kind.__len__(item) > _MAX_ENTRIES:
                return self._entries(kind, item)
        return gc.get_referents(item)

    def _entries(self, kind: Any, item: Any) -> Iterator[object]:
        """Reads a large container one by one. The methods of its base type run no code of the program."""
        entries: Any = dict.items(item) if kind is dict else zip(kind.__iter__(item))
        try:
            for number, entry in enumerate(entries):
                yield from entry
                if number % _STEP_OBJECTS == 0:
                    self.step()
        except RuntimeError:
            self.changed += 1

    def objects(self, generation: int) -> list[object]:
        """Returns all objects of a generation of the garbage collector."""
        self.release()
        objects = gc.get_objects(generation)
        self.release()
        return objects


class _Kind(Enum):
    """What the search does with objects of a type."""

    #: Refers to nothing of interest.
    ATOM = 0
    PLAIN = 1
    #: Has ``__cuda_array_interface__``.
    ARRAY = 2
    #: PyTorch's.
    TENSOR = 3


_kinds: dict[type, _Kind] = dict.fromkeys((str, bytes, int, float, bool, complex, type(None)), _Kind.ATOM)


def _kind(of: type) -> _Kind:
    known = _kinds.get(of)
    if known is None:
        torch = sys.modules.get("torch")
        if issubclass(of, ModuleType | type):
            known = _Kind.ATOM
        elif torch is not None and issubclass(of, torch.Tensor):
            known = _Kind.TENSOR
        elif any("__cuda_array_interface__" in base.__dict__ for base in of.__mro__):
            known = _Kind.ARRAY
        else:
            known = _Kind.PLAIN
        _kinds[of] = known
    return known


def address_of(item: Any) -> int | None:
    """Returns the address of the GPU memory of a tensor or an array; None for other objects."""
    kind = _kind(type(item))
    try:
        if kind is _Kind.TENSOR:
            return int(item.untyped_storage().data_ptr()) if item.is_cuda else None
        if kind is _Kind.ARRAY:
            return int(item.__cuda_array_interface__["data"][0])
    except Exception:  # noqa: BLE001
        # Tensors without storage, arrays that were freed.
        return None
    return None


def _frames(own: int) -> Iterator[tuple[str, FrameType]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = top if ident != own else None
        while frame is not None:
            yield names.get(ident, "thread"), frame
            frame = frame.f_back


def _locals(frame: FrameType) -> dict[str, object]:
    """Returns the locals of a running function. Before Python 3.13 the interpreter keeps the values in a dictionary, which is
    emptied here: it would keep them alive."""
    values = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _CO_OPTIMIZED and sys.gettrace() is None:
        frame.f_locals.clear()
    return values


def _roots(own: int) -> Iterator[tuple[str, object]]:
    for name, module in list(sys.modules.items()):
        if _is(module, ModuleType) and name.partition(".")[0] != "vramscope":
            for key, value in list(vars(module).items()):
                if not _is(value, ModuleType):
                    yield f"{name}.{key}", value
    for thread, frame in _frames(own):
        if frame.f_locals is frame.f_globals:
            continue
        code = frame.f_code
        for key, value in _locals(frame).items():
            yield f"local {key} of {code.co_name} ({code.co_filename}:{frame.f_lineno}, thread {thread})", value
    for name in ("last_exc", "last_value"):
        if getattr(sys, name, None) is not None:
            yield f"sys.{name}", getattr(sys, name)


class _Search:
    """One search for objects with given addresses."""

    def __init__(self, wanted: set[int], hidden: set[int]) -> None:
        self.wanted = wanted
        #: Ids of visited objects, and of the objects that referred to them; 0 for roots.
        self.parents: list[dict[int, int]] = [{} for _ in range(_SHARDS)]
        #: Number of visited objects.
        self.visited = 0
        for item in hidden:
            self._shard(item)[item] = 0
        self.labels: dict[int, tuple[str, object]] = {}
        self.found: dict[int, list[int]] = {}
        self.with_graph: list[object] = []
        self.is_complete = True

    def run(self, pace: _Pace, own: int) -> None:
        queue: deque[object] = deque()
        count = 0
        for label, value in _roots(own):
            if self._visit(value, 0):
                self.labels[id(value)] = (label, value)
                queue.append(value)
            pace.step()
        while queue:
            item = queue.popleft()
            if not self.is_complete:
                # Only drops the references, not all of them at once.
                count += 1
                if count % _STEP_OBJECTS == 0:
                    pace.step()
                continue
            for child in pace.referents(item):
                if self._visit(child, id(item)):
                    queue.append(child)
                count += 1
                if count % _STEP_OBJECTS == 0:
                    pace.step()
            self.is_complete = self.visited <= _MAX_OBJECTS and not pace.is_over()

    def _shard(self, item: int) -> dict[int, int]:
        return self.parents[(item >> 4) % _SHARDS]

    def clear(self, pace: _Pace) -> None:
        """Frees the ids in small steps."""
        while self.parents:
            self.parents.pop()
            pace.step()

    def _visit(self, item: Any, parent: int) -> bool:
        """Adds an object. Returns false if it is known, or refers to nothing of interest."""
        kind = _kinds.get(type(item)) or _kind(type(item))
        if kind is _Kind.ATOM:
            return False
        key = id(item)
        shard = self.parents[(key >> 4) % _SHARDS]
        if key in shard:
            return False
        if kind is _Kind.PLAIN:
            # Containers that the garbage collector does not track refer to atoms only.
            if not gc.is_tracked(item):
                return False
        else:
            address = address_of(item)
            if address in self.wanted:
                self.found.setdefault(address, []).append(key)
            if kind is _Kind.TENSOR and item.grad_fn is not None:
                self.with_graph.append(item)
        shard[key] = parent
        self.visited += 1
        return True

    def chain(self, target: int, pace: _Pace) -> list[object]:
        """Returns the objects from the root to one with this id; empty if one of them is gone."""
        ids = [target]
        while parent := self._shard(ids[-1]).get(ids[-1], 0):
            ids.append(parent)
        ids.reverse()
        root = self.labels.get(ids[0])
        if root is None or id(root[1]) != ids[0]:
            return []
        chain: list[object] = [root[1]]
        for wanted in ids[1:]:
            child = next((child for child in pace.referents(chain[-1]) if id(child) == wanted), None)
            if child is None:
                return []
            chain.append(child)
        return chain


def _edge(parent: Any, child: Any) -> str | None:
    """Returns how a parent refers to a child, with ``[*]`` for entries of containers; None if the parent is an implementation
    detail, such as the dictionary of an object."""
    if _is(parent, dict):
        return "[*]"
    if _is(parent, _CONTAINERS):
        return "[*]"
    if _is(parent, FunctionType):
        return None if child is parent.__closure__ else f".<{type(child).__name__}>"
    if _is(parent, CellType):
        return ""
    if _is(parent, TracebackType):
        return ".tb_frame" if _is(child, FrameType) else ".tb_next"
    if _is(parent, FrameType):
        return f".<local of {parent.f_code.co_name}>"
    if _is(parent, BaseException) and _is(child, TracebackType):
        return ".__traceback__"
    attributes: Any = getattr(parent, "__dict__", None)
    if attributes is child:
        return None
    if _is(attributes, dict):
        name = _key(attributes, child)
        if name is not None:
            return f".{name}"
    for base in type(parent).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if _is(slots, str) else slots:
            if not name.startswith("__") and getattr(parent, name, None) is child:
                return f".{name}"
    return f".<{type(child).__name__}>"


def _key(mapping: dict[Any, Any], wanted: Any) -> Any:
    """Returns the first key of a value; None if there is none, or the dictionary changes meanwhile."""
    try:
        return next((key for key, value in dict.items(mapping) if value is wanted), None)
    except RuntimeError:
        return None


def _keeper(label: str, chain: list[Any]) -> Keeper:
    path, container, described = label, label, chain[0]
    owner: Any = None
    for parent, child in pairwise(chain):
        edge = _edge(parent, child)
        if edge is None:
            owner = parent
            continue
        if _is(owner, FunctionType):
            cells = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=False)
            edge = next((f".<closure {name}>" for name, cell in cells if cell is child), edge)
        elif owner is not None and _is(parent, dict):
            # The dictionary of an object: the key is the attribute.
            key = _key(parent, child)
            edge = edge if key is None else f".{key}"
        elif _is(parent, _CONTAINERS) and len(parent) > 1:
            container, described = path, parent
        owner = None
        path += edge
    size = len(described) if _is(described, _CONTAINERS) else 1
    return Keeper(path, container, type(described).__name__, size)


def find(sites: list[list[int]]) -> tuple[list[Answer], dict[str, Any]]:
    """Returns the keepers of the memory at the given addresses, for each site, and facts about the search."""
    pace, own = _Pace(), threading.get_ident()
    wanted = {address for site in sites for address in site}
    hidden = {id(sites), id(wanted), *(id(site) for site in sites)}
    search = _Search(wanted, hidden)
    search.run(pace, own)
    # All chains before their names: reading attributes can change how an object refers to them.
    chains = {address: chain for address, ids in search.found.items() if (chain := _first_chain(search, ids, pace))}
    found = {address: _keeper(search.labels[id(chain[0])][0], chain) for address, chain in chains.items()}
    del chains
    found.update(_in_graphs(search, wanted - set(found), pace))
    missing = wanted - set(found)
    can_list = search.is_complete and search.visited <= _MAX_LISTED_OBJECTS
    cycles = _in_cycles(missing, pace) if missing and can_list else set()
    answers = []
    for site in sites:
        keepers: dict[str, Keeper] = {}
        answer = Answer()
        for address in site:
            keeper = found.get(address)
            if keeper is not None:
                keepers.setdefault(keeper.path, keeper).count += 1
            elif address in cycles:
                answer.in_cycles += 1
            else:
                answer.unknown += 1
        answer.keepers = sorted(keepers.values(), key=lambda keeper: -keeper.count)
        answers.append(answer)
        pace.step()
    search.clear(pace)
    pace.release()
    facts = {
        "objects": search.visited,
        "complete": search.is_complete and pace.changed == 0 and (can_list or not missing),
        "cpu_seconds": round(time.thread_time() - pace.start, 3),
        "longest_hold_seconds": round(pace.longest_hold, 4),
    }
    return answers, facts


def _first_chain(search: _Search, ids: list[int], pace: _Pace) -> list[object]:
    return next((chain for target in ids if (chain := search.chain(target, pace))), [])


def _in_cycles(missing: set[int], pace: _Pace) -> set[int]:
    """Returns the addresses of objects that exist but are not reachable from a root."""
    found = set()
    for generation in range(3):
        objects = pace.objects(generation)
        while objects:
            address = address_of(objects.pop())
            if address in missing:
                found.add(address)
            if len(objects) % _STEP_OBJECTS == 0:
                pace.step()
        pace.release()
    return found


def _in_graphs(search: _Search, missing: set[int], pace: _Pace) -> dict[int, Keeper]:
    """Returns keepers of tensors that nodes of autograd graphs saved, with the chain of nodes."""
    found: dict[int, Keeper] = {}
    nodes = 0
    for tensor in search.with_graph if missing else ():
        queue = deque([(getattr(tensor, "grad_fn", None), "")])
        seen: set[object] = set()
        while queue and nodes < _MAX_GRAPH_NODES:
            node, path = queue.popleft()
            if node is None or node in seen:
                continue
            seen.add(node)
            nodes += 1
            path = f"{path}.{'grad_fn' if not path else 'next'}<{type(node).__name__}>"
            for address in _saved(node):
                if address in missing and address not in found:
                    chain = search.chain(id(tensor), pace)
                    label = search.labels[id(chain[0])][0] if chain else "a tensor"
                    base = _keeper(label, chain) if chain else Keeper(label, label, "Tensor", 1)
                    found[address] = Keeper(base.path + path, base.container, base.container_type, base.entries)
            queue.extend((following, path) for following, _ in node.next_functions)
            pace.step()
    return found


def _saved(node: Any) -> Iterator[int]:
    """Returns the addresses of the tensors that a node saved: ``_saved_*`` of PyTorch's own functions, ``saved_tensors`` and
    attributes of the program's, ``variable`` of leaves."""
    attributes = list(getattr(node, "__dict__", {}))
    for name in dir(node):
        if name.startswith("_saved_") or name in ("saved_tensors", "variable") or name in attributes:
            try:
                value = getattr(node, name)
            except RuntimeError:
                # The graph was freed.
                continue
            for item in value if _is(value, list | tuple) else (value,):
                address = address_of(item)
                if address is not None:
                    yield address
