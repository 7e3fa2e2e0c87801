#!/usr/bin/env python3
"""Creates and destroys known numbers of CUDA objects through the driver API alone.

usage: objects.py [COUNT]

At the end prints one line `EXPECT {kind: [live, created, destroyed, released]}`. Kinds that the driver does not
support are skipped, with a message on standard error.
"""
import ctypes
import json
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
PTX = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
u64, pointer = ctypes.c_uint64, ctypes.byref


class CallFailed(Exception):
    """A driver call returned an error."""


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise CallFailed(f"{name} returned {code}")


def new(name, *arguments, first=True):
    """Calls a function that returns a handle through its first or its last argument."""
    handle = u64()
    call(name, *((pointer(handle), *arguments) if first else (*arguments, pointer(handle))))
    return handle


class ObjectFactory:
    """Creates objects, alternating between the functions that create a kind."""

    def __init__(self):
        self.created = 0
        # width, height, depth, format (float), channels, flags (surfaces)
        descriptor = (ctypes.c_uint64 * 5)(16, 16, 0, 0x20 | 1 << 32, 2)
        self.array = new("cuArray3DCreate_v2", descriptor)
        self.graph = new("cuGraphCreate", 0)
        self.stream = new("cuStreamCreate", 1)
        self.resource = (ctypes.c_uint64 * 18)(0, self.array.value)
        self.texture = (ctypes.c_uint64 * 16)()

    def captured(self):
        call("cuStreamBeginCapture_v2", self.stream, 2)
        return new("cuStreamEndCapture", self.stream, first=False)

    def context(self):
        context = new("cuCtxCreate_v2", 0, 0)
        popped = u64()
        call("cuCtxPopCurrent_v2", pointer(popped))
        return context

    def green(self):
        resource, descriptor = (ctypes.c_uint64 * 64)(), u64()
        call("cuDeviceGetDevResource", 0, resource, 1)
        call("cuDevResourceGenerateDesc", pointer(descriptor), resource, 1)
        return new("cuGreenCtxCreate", descriptor, 0, 1)

    def create(self, kind):
        self.created += 1
        even = self.created % 2 == 0
        pool = (ctypes.c_int * 22)(1, 0, 1, 0)
        return {
            "stream": lambda: new("cuStreamCreateWithPriority", 1, 0) if even else new("cuStreamCreate", 1),
            "event": lambda: new("cuEventCreate", 2),
            "graph": lambda: (self.captured() if self.created % 3 == 0 else
                              new("cuGraphClone", self.graph) if even else new("cuGraphCreate", 0)),
            "graph_exec": lambda: new("cuGraphInstantiateWithFlags", self.graph, u64(0)),
            "module": lambda: (new("cuModuleLoadDataEx", PTX, 0, None, None) if even else
                               new("cuModuleLoadData", PTX)),
            "library": lambda: new("cuLibraryLoadData", PTX, None, None, 0, None, None, 0),
            "context": self.context,
            "green_context": self.green,
            "texture": lambda: new("cuTexObjectCreate", self.resource, self.texture, None),
            "surface": lambda: new("cuSurfObjectCreate", self.resource),
            "pool": lambda: new("cuMemPoolCreate", pool),
            "linker": lambda: new("cuLinkCreate_v2", 0, None, None, first=False),
        }[kind]()


DESTROY = {
    "stream": "cuStreamDestroy_v2", "event": "cuEventDestroy_v2", "graph": "cuGraphDestroy",
    "graph_exec": "cuGraphExecDestroy", "module": "cuModuleUnload", "library": "cuLibraryUnload",
    "context": "cuCtxDestroy_v2", "green_context": "cuGreenCtxDestroy", "texture": "cuTexObjectDestroy",
    "surface": "cuSurfObjectDestroy", "pool": "cuMemPoolDestroy", "linker": "cuLinkDestroy",
}
OWNED_BY_CONTEXT = {"stream", "event", "module", "texture", "surface", "linker"}


def rounds(factory, count, tally, in_context):
    for kind, destroy in DESTROY.items():
        # Contexts are expensive.
        number = min(count, 6) if "context" in kind else count
        try:
            for round in range(number):
                handle = factory.create(kind)
                counts = tally.setdefault(kind, [0, 0, 0, 0])
                counts[1] += 1
                if round % 4 == 3:
                    released = in_context and kind in OWNED_BY_CONTEXT
                    counts[3 if released else 0] += 1
                else:
                    call(destroy, handle)
                    counts[2] += 1
        except CallFailed as error:
            print(f"skipped: {kind}: {error}", file=sys.stderr)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    call("cuInit", 0)
    primary = new("cuDevicePrimaryCtxRetain", 0)
    call("cuCtxSetCurrent", primary)
    tally = {"graph": [0, 0, 0, 0], "stream": [0, 0, 0, 0]}
    for in_context in (True, False):
        if in_context:
            own = new("cuCtxCreate_v2", 0, 0)
            tally.setdefault("context", [0, 0, 0, 0])[1] += 1
        factory = ObjectFactory()
        tally["graph"][1] += 1
        tally["stream"][1] += 1
        rounds(factory, count, tally, in_context)
        call("cuGraphDestroy", factory.graph)
        tally["graph"][2] += 1
        call("cuStreamDestroy_v2", factory.stream)
        tally["stream"][2] += 1
        call("cuArrayDestroy", factory.array)
        if in_context:
            call("cuCtxDestroy_v2", own)
            tally["context"][2] += 1
    print("EXPECT " + json.dumps(tally), flush=True)
    time.sleep(1.5)


main()
