"""Labels for points in time and phases, shown by all running traces of this host.

Each trace has a datagram socket in the abstract namespace, which the kernel lists. Without a trace a mark does nothing.
"""

import contextlib
import socket
import time
from collections.abc import Iterator

_PREFIX = "@vramscope-trace-"
_MAX_LABEL_BYTES = 256


def mark(label: str) -> int:
    """Labels this point in time of this process, such as ``epoch 3``, in all running traces.

    It does not wait for the traces. At most 20 marks per second are kept.

    :returns: the number of traces that the mark was sent to.
    """
    return _send("point", label)


@contextlib.contextmanager
def phase(label: str) -> Iterator[None]:
    """Labels the time of a block, in all running traces.

    >>> with phase("evaluation"):
    ...     pass
    """
    _send("begin", label)
    try:
        yield
    finally:
        _send("end", label)


def _send(kind: str, label: str) -> int:
    if not isinstance(label, str):
        raise TypeError(f"label: a string is required, not {type(label).__name__}")
    size = len(label.strip().encode(errors="replace"))
    if not 0 < size <= _MAX_LABEL_BYTES:
        raise ValueError(f"label: 1 to {_MAX_LABEL_BYTES} bytes are required, not {size}")
    data = f"mark {kind} self {time.monotonic_ns()} {label}".encode(errors="replace")
    names = _trace_sockets()
    if not names:
        return 0
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # A trace that does not read, because it is stopped, must not delay the program.
        sender.setblocking(False)
        for name in names:
            # Fails if the trace has ended or its queue is full.
            with contextlib.suppress(OSError):
                sender.sendto(data, name)
                sent += 1
    return sent


def _trace_sockets() -> list[bytes]:
    """Returns the addresses of the sockets of traces."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as listed:
            names = {line.rsplit(" ", 1)[-1].strip() for line in listed if _PREFIX in line}
    except OSError:
        return []
    return [b"\0" + name[1:].encode() for name in sorted(names) if name.startswith(_PREFIX)]
