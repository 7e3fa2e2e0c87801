"""Runs a program on a pseudo-terminal and presses keys.

Reads steps as JSON from the first argument, and prints what the screen showed as JSON:

    {"wait": TEXT}      until the screen contains TEXT
    {"gone": TEXT}      until the screen does not contain TEXT
    {"keys": TEXT}      press keys
    {"signal": NUMBER}  send a signal to the program
    {"resize": [W, H]}  change the size of the terminal; with "keys": TEXT, press keys at the same time
    {"screen": NAME}    store the screen
    {"stopped": true}   until the program is stopped; then continue it
    {"close": true}     close the terminal
    {"run": COMMAND}    run a shell command
    {"exit": true}      until the program exits

The screen understands what full-screen programs write: positions, erasing, colors (ignored) and text.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

LIMIT_SECONDS = 60
SEQUENCE = re.compile(rb"\x1b(?:\[([?>]?)([0-9;]*)([@-~])|[()][A-Z0-9]|[=>78cDEHM])")


class Screen:
    """Cells of a terminal."""

    def __init__(self, width, height):
        self.rest = b""
        self.modes = set()
        self.colors = set()
        self.resize(width, height)

    def resize(self, width, height):
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]
        self.x = self.y = 0

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.cells)

    def feed(self, data):
        data = self.rest + data
        self.rest = b""
        while data:
            if data[:1] == b"\x1b":
                match = SEQUENCE.match(data)
                if not match:
                    if len(data) < 32:
                        self.rest = data
                        return
                    raise SystemExit(f"unknown sequence {data[:20]!r}")
                self.control(match)
                data = data[match.end() :]
                continue
            end = data.find(b"\x1b")
            text = data if end < 0 else data[:end]
            try:
                decoded = text.decode()
            except UnicodeDecodeError as error:
                if end >= 0 or error.end < len(text) - 4:
                    raise
                decoded = text[: error.start].decode()
                self.rest = text[error.start :]
            for char in decoded:
                self.put(char)
            if end < 0:
                return
            data = data[end:]

    def put(self, char):
        if char == "\r":
            self.x = 0
        elif char == "\n" and self.y < self.height - 1:
            self.y += 1
        elif char == "\n":
            self.cells = [*self.cells[1:], [" "] * self.width]
        elif char >= " " and self.y < self.height:
            if self.x < self.width:
                self.cells[self.y][self.x] = char
            self.x += 1

    def control(self, match):
        private, parameters, final = match.groups()
        numbers = [int(part or 0) for part in (parameters or b"").split(b";")]
        if private == b"?" and final in (b"h", b"l"):
            change = self.modes.add if final == b"h" else self.modes.discard
            for number in numbers:
                change(number)
        elif final == b"m":
            colors = [number for number in numbers if 30 <= number <= 38 or 90 <= number <= 97]
            self.colors.update(colors)
        elif final in (b"H", b"f"):
            self.y = max(numbers[0], 1) - 1
            self.x = max(numbers[1] if len(numbers) > 1 else 1, 1) - 1
        elif final == b"J" and numbers[0] in (2, 3):
            self.cells = [[" "] * self.width for _ in range(self.height)]
        elif final == b"J":
            self.cells[self.y][self.x :] = [" "] * (self.width - self.x)
            for line in range(self.y + 1, self.height):
                self.cells[line] = [" "] * self.width
        elif final == b"K":
            self.cells[self.y][self.x :] = [" "] * (self.width - self.x)


class Session:
    """A program on a terminal."""

    def __init__(self, command, width, height):
        self.screen = Screen(width, height)
        self.result = {"screens": {}, "answers_ms": []}
        known, is_known = os.pipe()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            # The program changes the state of the terminal.
            os.read(known, 1)
            os.execvp(command[0], command)
        self.before = termios.tcgetattr(self.terminal)[:4]
        os.write(is_known, b"x")
        self.status = None

    def read(self, seconds):
        if self.terminal is None:
            time.sleep(seconds)
            return b""
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        if not ready:
            return b""
        try:
            data = os.read(self.terminal, 65536)
        except OSError:
            data = b""
        self.screen.feed(data)
        return data

    def poll(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return "stopped"
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return "exited" if self.status is not None else "running"

    def until(self, what, check):
        end = time.monotonic() + LIMIT_SECONDS
        while not check():
            if time.monotonic() > end:
                raise SystemExit(f"waited in vain for {what}; the screen:\n{self.screen.text()}")
            self.read(0.02)

    def step(self, step):
        (name, value), *_ = step.items()
        if name == "wait":
            self.until(value, lambda: value in self.screen.text())
        elif name == "gone":
            self.until(f"the end of {value}", lambda: value not in self.screen.text())
        elif name == "keys":
            start = time.monotonic()
            os.write(self.terminal, value.encode())
            if self.read(1):
                self.result["answers_ms"].append((time.monotonic() - start) * 1000)
        elif name == "signal":
            os.kill(self.pid, value)
        elif name == "resize":
            self.screen.resize(*value)
            size = struct.pack("HHHH", value[1], value[0], 0, 0)
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)
            os.kill(self.pid, signal.SIGWINCH)
            os.write(self.terminal, step.get("keys", "").encode())
        elif name == "screen":
            self.result["screens"][value] = self.screen.text()
        elif name == "stopped":
            self.until("the stop", lambda: self.poll() == "stopped")
            while self.read(0.05):
                pass
            self.result["stopped"] = self.state()
            os.kill(self.pid, signal.SIGCONT)
        elif name == "run":
            subprocess.run(value, shell=True, check=True)
        elif name == "close":
            os.close(self.terminal)
            self.terminal = None
        elif name == "exit":
            self.until("the exit", lambda: self.poll() == "exited")
            while self.terminal is not None and self.read(0.05):
                pass

    def state(self):
        """Whether the terminal is as it was before."""
        restored = termios.tcgetattr(self.terminal)[:4] == self.before
        return {"restored": restored, "modes": sorted(self.screen.modes)}


def main():
    width, height, *command = sys.argv[2:]
    session = Session(command, int(width), int(height))
    try:
        for step in json.loads(sys.argv[1]):
            session.step(step)
        result = session.result | {
            "colors": sorted(session.screen.colors),
            "status": session.status,
            "last": session.screen.text(),
        }
        if session.terminal is not None:
            result["end"] = session.state()
        print(json.dumps(result))
    finally:
        if session.poll() != "exited":
            os.kill(session.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
