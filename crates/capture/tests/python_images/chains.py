"""Starts threads that wait at known lines in many kinds of frames, and prints their stacks.

The line of every frame ends with "here", that of an innermost frame with "waits here". Functions named `entered_*`
are called by C code, those named `plain_*` by Python code. The frames as the interpreter itself reports
them go to standard output:

    pid<TAB>number
    thread<TAB>identity, in hexadecimal<TAB>name
    frame<TAB>line<TAB>file<TAB>function     innermost first
    ready

It exits at the end of standard input.
"""
import _thread
import ctypes
import functools
import os
import sys
import time

libc = ctypes.CDLL(None)
threads = {}


def park():
    time.sleep(1e6)  # waits here


def chain(function):
    """Runs a function in its own thread."""

    def entered_thread():
        threads[_thread.get_ident()] = function.__name__
        function()  # here

    _thread.start_new_thread(entered_thread, ())


def decorated(function):
    @functools.wraps(function)
    def plain_wrapper():
        return function()  # here

    return plain_wrapper


class Model:
    def plain_forward(self):
        return (lambda: self.plain_layer())()  # here

    def plain_layer(self):
        return [self.plain_step(i) for i in range(1)]  # here

    @decorated
    def plain_inner():
        class Body:  # here
            value = park()  # here

    def plain_step(self, i):
        def generate():
            yield Model.plain_inner()  # here

        for _ in generate():  # here
            pass


@chain
def kinds():
    Model().plain_forward()  # here


@chain
def entries():
    def entered_by_sort(_):
        park()  # here

    def plain_between():
        sorted([1], key=entered_by_sort)  # here

    def entered_by_map(_):
        plain_between()  # here

    list(map(entered_by_map, [1]))  # here


@chain
def without_the_lock():
    libc.pause()  # waits here


@chain
def several_lines():
    value = (
        len("a")
        + len(
            "b"
        )
        + sum([
            1,
            park(),  # here
            2,
        ])
        + len("c")
    )
    return value


@chain
def after_much_else():
    total = 0
    for i in range(3):
        try:
            total += i
            if total > 100:
                raise ValueError
        except ValueError:
            total = -1
        else:
            total += 1
        finally:
            total += 1
    with open(__file__) as nothing:
        nothing.read()
        while total:
            total = 0
            try:
                raise KeyError
            except KeyError:
                park()  # here


@chain
def deep():
    def plain_down(n):
        if n:
            plain_down(n - 1)  # here
        else:
            park()  # here

    plain_down(8)  # here


class Made:
    def __init__(self, wait):
        if wait:
            park()  # here


@chain
def made_often():
    # Often enough that the interpreter specializes the call of `__init__`.
    for i in range(5000):
        Made(i == 4999)  # here


@chain
def generated_often():
    def numbers():
        for i in range(5000):
            yield i
        park()  # here

    for _ in numbers():  # here
        pass


@chain
def coroutines():
    async def inner():
        park()  # here

    async def outer():
        await inner()  # here

    outer().send(None)  # here


def made_of_text(file, name, before):
    source = "\n" * before + "def " + name + "(park):\n" + "\n" * 200 + "    park()\n" + "\n" * 200 + "\n"
    names = {}
    exec(compile(source, file, "exec"), names)
    return names[name]


@chain
def latin():
    made_of_text("gr\u00f6\u00dfe.py", "gr\u00f6\u00dfe", 0)(park)  # here


@chain
def cyrillic():
    made_of_text("\u043f\u0440\u043e\u0431\u0430.py", "\u043f\u0440\u043e\u0431\u0430", 70000)(park)  # here


@chain
def wide():
    made_of_text("\U00020000.py", "\U00020000", 300)(park)  # here


def describe(out):
    frames = sys._current_frames()
    for thread, name in sorted(threads.items(), key=lambda item: item[1]):
        out.append("thread\t%x\t%s" % (thread, name))
        frame = frames[thread]
        while frame:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            out.append("frame\t%d\t%s\t%s" % (frame.f_lineno, code.co_filename, name))
            frame = frame.f_back
    return out


def another_interpreter():
    """Creates an unused interpreter; it comes before the first in the list of interpreters."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    return __import__(name).create()


def report(count, here):
    other = another_interpreter()

    def waits(frame):
        return frame.f_code.co_filename == __file__ and frame.f_lineno in here

    # A thread stays on its line once it has reached it.
    while len(threads) < count or not all(
        waits(frame) for thread, frame in sys._current_frames().items() if thread in threads
    ):
        time.sleep(0.01)
    lines = ["pid\t%d" % os.getpid()] + describe([]) + ["ready\n"]
    os.write(1, "\n".join(lines).encode("utf-8", "surrogateescape"))
    while os.read(0, 4096):
        pass
    os._exit(0 if other is not None else 1)


def main():
    with open(__file__, encoding="utf-8") as file:
        here = {n for n, line in enumerate(file, 1) if line.endswith("waits here\n")}
    threads[_thread.get_ident()] = "main"
    chains = sum(1 for name in __source__.split("\n") if name == "@chain")
    _thread.start_new_thread(report, (chains + 1, here))
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire()  # waits here


with open(__file__, encoding="utf-8") as file:
    __source__ = file.read()
main()  # here
