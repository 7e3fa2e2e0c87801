"""A thread that answers ``vramscope why`` and ``vramscope reclaim`` for this process.

It listens on a socket that only this user can open: in the directory of the collector, or in a directory of its own. The thread
sleeps until a request arrives.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from atexit import register
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vramscope import _collector, _keepers

#: Limit of bytes of a request: 20 sites with 64 addresses each.
_MAX_REQUEST = 1 << 17
_REQUEST_TIMEOUT = 10.0


class _Server:
    def __init__(self) -> None:
        self.pid = 0
        self.lock = threading.Lock()
        self.callbacks: list[Callable[[], object]] = []

    def start(self) -> None:
        """Starts the thread, unless it runs in this process."""
        with self.lock:
            if self.pid == os.getpid():
                return
            listener = _listen()
            self.pid = os.getpid()
        threading.Thread(target=self._serve, args=(listener,), name="vramscope", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_REQUEST_TIMEOUT)
                try:
                    request = json.loads(connection.makefile("r", encoding="utf-8").readline(_MAX_REQUEST))
                    answer = self._answer(request)
                except Exception as error:  # noqa: BLE001
                    # A thread of the program must not end because of a request.
                    answer = {"error": f"{type(error).__name__}: {error}"}
                try:
                    connection.sendall((json.dumps(answer) + "\n").encode())
                except OSError:
                    continue

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("op") == "why":
            answers, facts = _keepers.find([[int(address) for address in site] for site in request["sites"]])
            return {"sites": [asdict(answer) for answer in answers], "search": facts}
        if request.get("op") == "callbacks":
            return {"count": len(self.callbacks)}
        if request.get("op") == "reclaim":
            return {"callbacks": [_call(callback) for callback in list(self.callbacks)]}
        return {"error": "unknown request; use the same version of the package and of the binary"}


def _call(callback: Callable[[], object]) -> dict[str, Any]:
    name = f"{getattr(callback, '__module__', '?')}.{getattr(callback, '__qualname__', repr(callback))}"
    start = time.monotonic()
    error = None
    try:
        callback()
    except Exception as failure:  # noqa: BLE001
        error = f"{type(failure).__name__}: {failure}"
    return {"name": name, "seconds": round(time.monotonic() - start, 6), "error": error}


def _listen() -> socket.socket:
    directory = _collector.run_dir()
    if directory is None:
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
        directory = os.path.join(parent, f"vramscope-{os.getpid()}-python")
        # Left by an earlier process with the same id, or made by another user: then mkdir fails.
        shutil.rmtree(directory, ignore_errors=True)
        os.mkdir(directory, 0o700)
        owner = os.getpid()
        register(lambda: shutil.rmtree(directory, ignore_errors=True) if os.getpid() == owner else None)
    path = os.path.join(directory, f"python-{os.getpid()}")
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(8)
    return listener


_server = _Server()


def start() -> None:
    """Starts the thread; a failure is reported and does not affect the program."""
    try:
        _server.start()
    except OSError as error:
        sys.stderr.write(f"vramscope: `vramscope why` and `reclaim` are not available: {error}\n")


def on_memory_pressure(callback: Callable[[], object]) -> Callable[[], object]:
    """Registers a function that frees GPU memory, such as ``torch.cuda.empty_cache``. Can be used as a decorator.

    ``vramscope reclaim -p PID``, which recovery policies can run, calls all registered functions one after the other, in a thread
    of this package, and reports how much memory each request freed. Functions should only free caches or set a flag that the
    program checks; they run at the same time as the program.
    """
    _server.callbacks.append(callback)
    start()
    return callback


def remove_memory_pressure_callback(callback: Callable[[], object]) -> None:
    """Removes a registered function.

    :raises ValueError: if it is not registered.
    """
    _server.callbacks.remove(callback)
