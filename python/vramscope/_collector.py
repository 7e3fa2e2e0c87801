"""The collector: the process ``vramscope run``, which reads the records of this process and answers its requests.

A program that was started with ``vramscope run`` finds its collector in the environment. Otherwise this module starts one, as
a child process, before CUDA is initialized.
"""

import atexit
import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DIR_VARIABLE = "VRAMSCOPE_RUN_DIR"
_INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
_CHAIN_VARIABLE = "VRAMSCOPE_CHAINED_INJECTION"
_SOCKET_FILE = "socket"
_NOT_INITIALIZED = 3
_PR_SET_PTRACER = 0x59616D61
# The collector answers within 5 seconds, also if names of functions are missing.
_ANSWER_TIMEOUT = 30.0
_STOP_TIMEOUT = 10.0


class VramscopeError(RuntimeError):
    """Raised if memory cannot be measured; the message says why and what to do."""


class _State:
    """The collector that this process has started, and the process that may be inspected by it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0
        self.prepared = 0


_state = _State()


def binary() -> str:
    """Returns the path of the program ``vramscope``: that of this package, or the one in PATH."""
    schemes = [sysconfig.get_path("scripts")]
    if "posix_user" in sysconfig.get_scheme_names():
        schemes.append(sysconfig.get_path("scripts", "posix_user"))
    # Next to the directory of packages, for `pip install --target`.
    schemes.append(str(Path(__file__).parent.parent / "bin"))
    for directory in schemes:
        candidate = os.path.join(directory, "vramscope")
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("vramscope")
    if found is None:
        raise VramscopeError("the program vramscope was not found; reinstall the package vramscope")
    return found


def is_cuda_initialized() -> bool:
    """Whether this process has called ``cuInit``: then the driver does not load the library any more."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED)


def run_dir() -> str | None:
    """The directory of the collector of this process, if it has one."""
    return os.environ.get(_DIR_VARIABLE) or None


def start(*, record: str | os.PathLike[str] | None = None, options: Sequence[str] = ()) -> None:
    """Starts the collector, unless this process already has one.

    :param record: also record every event to this file, for ``vramscope report``, ``plot`` and ``diff``.
    :param options: further options of ``vramscope run``.
    :raises VramscopeError: if CUDA is already initialized, or the collector does not start.
    """
    if run_dir() is not None:
        if record is not None:
            raise VramscopeError("the program already runs under `vramscope run`; use its option --record")
        return
    if is_cuda_initialized():
        raise VramscopeError(
            "CUDA is already initialized in this process; call vramscope.start() earlier, or start the program with "
            "`vramscope run -- python ...`"
        )
    command = [binary(), "run", "--quiet", "--for-parent", *options]
    if record is not None:
        command += ["--record", os.fspath(record)]
    # In its own session: Ctrl-C is for this process.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise VramscopeError(f"the collector did not start: `{' '.join(command)}` exited with status {process.wait()}")
    os.environ.update(json.loads(line)["environment"])
    _state.process, _state.owner = process, os.getpid()
    _allow_inspection(process.pid)
    atexit.register(stop)


def stop() -> None:
    """Ends the collector that this process has started, and completes its files. CUDA calls are not recorded any more."""
    process = _state.process
    if process is None or not is_own():
        return
    _state.process = None
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        sys.stderr.write("vramscope: the collector still writes its files\n")
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    os.environ.pop(_DIR_VARIABLE, None)
    os.environ.pop(_INJECTION_VARIABLE, None)
    # The library that was configured before.
    if chained := os.environ.pop(_CHAIN_VARIABLE, None):
        os.environ[_INJECTION_VARIABLE] = chained


def is_own() -> bool:
    """Whether this process has started its collector."""
    return _state.process is not None and _state.owner == os.getpid()


class Connection:
    """A connection to the collector. Closing it drops the measurements that it has begun."""

    def __init__(self, directory: str | None = None) -> None:
        path = os.path.join(directory or run_dir() or "", _SOCKET_FILE)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_TIMEOUT)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise VramscopeError(f"cannot connect to the collector at {path}: {error.strerror}; has it ended?") from error
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _allow_inspection(int(struct.unpack("3i", credentials)[0]))
        self._reader = self._socket.makefile("r", encoding="utf-8")

    def request(self, operation: str, **fields: object) -> dict[str, Any]:
        """Sends a request and returns its answer."""
        try:
            self._socket.sendall((json.dumps({"op": operation, **fields}) + "\n").encode())
            line = self._reader.readline()
        except OSError as error:
            raise VramscopeError(f"the collector does not answer: {error}") from error
        if not line:
            raise VramscopeError("the collector has ended; start the program again")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise VramscopeError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._reader.close()
        self._socket.close()


def connect() -> Connection:
    """Connects to the collector of this process, and starts it if there is none."""
    start()
    return Connection()


def prepare() -> None:
    """Lets the collector read names of Python functions from this process, if its parent does not run it."""
    if run_dir() is not None and _state.prepared != os.getpid():
        Connection().close()


def _allow_inspection(collector: int) -> None:
    """Allows the collector to read the memory of this process, also where the kernel restricts that to parents."""
    if _state.prepared == os.getpid():
        return
    _state.prepared = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)
    # Fails on kernels without that restriction.
    libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(collector), 0, 0, 0)
