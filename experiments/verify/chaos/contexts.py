"""Pushes and pops contexts at random, to great depth, from Python functions of varying depth.

Afterwards it may exec itself. Runs on the real or the simulated driver.

usage: contexts.py SEED OPERATIONS DEPTH THREADS EXECS
"""
import ctypes
import os
import random
import sys
import threading

CUDA = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """Calls the driver and returns whether it succeeded. Handles and addresses are 64 bits wide."""
    wide = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
    return getattr(CUDA, name)(*wide) == 0


def out():
    return ctypes.c_uint64()


class Program:
    """Random operations on one thread."""

    def __init__(self, seed, depth):
        self.random, self.depth = random.Random(seed), depth
        self.contexts, self.pushed, self.memory, self.primary = [], 0, [], 0

    def create(self):
        context = out()
        if len(self.contexts) < 12 and call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0),
                                            ctypes.c_int(self.random.randrange(2))):
            self.contexts.append(context.value)
            self.pushed += 1

    def push(self):
        if self.contexts and self.pushed < self.depth:
            self.pushed += call("cuCtxPushCurrent_v2", self.random.choice(self.contexts))

    def pop(self):
        self.pushed -= call("cuCtxPopCurrent_v2", ctypes.byref(out()))

    def many(self):
        """Pushes or pops many times in a row."""
        step = self.random.choice([self.push, self.pop])
        for _ in range(self.depth):
            step()

    def set(self):
        call("cuCtxSetCurrent", self.random.choice([*self.contexts, 0]))

    def destroy(self):
        if self.contexts:
            context = self.random.choice(self.contexts)
            if call("cuCtxDestroy_v2", context):
                self.contexts.remove(context)

    def allocate(self):
        pointer = out()
        if call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(self.random.randrange(1, 1 << 16))):
            self.memory.append(pointer.value)

    def free(self):
        if self.memory:
            call("cuMemFree_v2", self.memory.pop(self.random.randrange(len(self.memory))))

    def retain(self):
        context = out()
        if call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0)):
            self.primary += 1
            if self.random.randrange(2):
                call("cuCtxSetCurrent", context.value)

    def release(self):
        if self.primary:
            self.primary -= call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(0))

    def run(self, operations):
        steps = [self.allocate] * 8 + [self.free] * 3 + [self.push] * 4 + [self.pop] * 3
        steps += [self.create, self.create, self.destroy, self.set, self.many, self.retain, self.release]
        for _ in range(operations):
            self.nested(self.random.choice([0, 0, 0, 1, 5, 60, 150]), self.random.choice(steps))

    def nested(self, depth, step):
        """Runs a step at this call depth."""
        if depth:
            self.nested(depth - 1, step)
        else:
            step()


def main():
    seed, operations, depth, threads, execs = (int(word) for word in sys.argv[1:])
    if CUDA.cuInit(0) != 0:
        sys.exit("cuInit failed")
    programs = [Program(seed + number, depth) for number in range(threads)]
    running = [threading.Thread(target=program.run, args=(operations,)) for program in programs[1:]]
    for thread in running:
        thread.start()
    programs[0].run(operations)
    for thread in running:
        thread.join()
    if execs:
        os.execv(sys.executable, [sys.executable, __file__, *map(str, [seed + 1, operations, depth, threads, execs - 1])])


if __name__ == "__main__":
    main()
