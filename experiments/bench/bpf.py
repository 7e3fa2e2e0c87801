"""A look at the kernel's BPF objects from outside: which there are, and what is in them. Needs root."""
import contextlib
import ctypes
import errno
import mmap
import os
import platform
import struct

NUMBER = {"x86_64": 321, "aarch64": 280}[platform.machine()]
NEXT_KEY, INFO, NEXT_LINK = 4, 15, 31
UPROBE_MULTI = 12
BY_ID = {"prog": 13, "map": 14, "link": 30}
HASH, LRU, PERCPU_HASH, RING = 1, 9, 5, 27
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(command, attributes):
    """bpf(2); the attributes as the kernel left them."""
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    done = LIBC.syscall(NUMBER, command, buffer, 128)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done, buffer.raw


def is_there(sort, number):
    """Whether the kernel has an object (prog, map or link) of that id."""
    try:
        os.close(call(BY_ID[sort], struct.pack("=II", number, 0))[0])
        return True
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise


def uprobe_links():
    """Ids of the links of all uprobes that go by one link (of kind uprobe_multi), whoever made them."""
    found, number = [], 0
    while True:
        try:
            number = struct.unpack_from("=II", call(NEXT_LINK, struct.pack("=II", number, 0))[1])[1]
        except OSError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        try:
            fd = call(BY_ID["link"], struct.pack("=II", number, 0))[0]
        except OSError:
            continue
        info = ctypes.create_string_buffer(128)
        call(INFO, struct.pack("=IIQ", fd, 128, ctypes.addressof(info)))
        os.close(fd)
        if struct.unpack_from("=I", info.raw)[0] == UPROBE_MULTI:
            found.append(number)


def owned(pid):
    """The BPF objects that a process has open: sets of ids by sort."""
    found = {"map": set(), "prog": set(), "link": set()}
    folder = f"/proc/{pid}/fdinfo"
    for name in os.listdir(folder):
        try:
            with open(f"{folder}/{name}") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(":")
            if key.endswith("_id") and key[:-3] in found:
                found[key[:-3]].add(int(value))
    return found


def time_in_programs(pid):
    """Nanoseconds that the programs of a process ran, as the kernel accounts them while it is asked to."""
    programs, folder = {}, f"/proc/{pid}/fdinfo"
    for name in os.listdir(folder):
        try:
            with open(f"{folder}/{name}") as file:
                fields = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
        except OSError:
            continue
        if "run_time_ns" in fields:
            programs[fields["prog_id"]] = int(fields["run_time_ns"])
    return sum(programs.values())


@contextlib.contextmanager
def accounting():
    """While it is open the kernel accounts what programs take, which costs each of them some."""
    path = "/proc/sys/kernel/bpf_stats_enabled"
    with open(path) as file:
        before = file.read()
    try:
        with open(path, "w") as file:
            file.write("1")
        yield
    finally:
        with open(path, "w") as file:
            file.write(before)


class Map:
    """A map that a process made."""

    def __init__(self, number):
        self.fd = call(BY_ID["map"], struct.pack("=II", number, 0))[0]
        info = ctypes.create_string_buffer(88)
        call(INFO, struct.pack("=IIQ", self.fd, 88, ctypes.addressof(info)))
        self.type, self.id, self.key_size, self.value_size, self.max_entries, _ = struct.unpack_from("=6I", info.raw)
        self.name = info.raw[24:40].split(b"\0")[0].decode()

    def keys(self):
        """All keys of a hash table, as bytes."""
        key, following = None, ctypes.create_string_buffer(self.key_size)
        while True:
            given = ctypes.create_string_buffer(key, self.key_size) if key is not None else None
            address = ctypes.addressof(given) if given else 0
            try:
                call(NEXT_KEY, struct.pack("=IIQQ", self.fd, 0, address, ctypes.addressof(following)))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            key = following.raw
            yield key

    def close(self):
        os.close(self.fd)


def maps_of(pid):
    return [Map(number) for number in sorted(owned(pid)["map"])]


class RingFill:
    """How full a ring is: the kernel shares both positions with whoever may look."""

    def __init__(self, pid, name="records"):
        self.bytes, self.fd = 0, None
        for one in maps_of(pid):
            if self.fd is None and one.type == RING and one.name == name:
                self.fd, self.bytes = one.fd, one.max_entries
            else:
                one.close()
        if self.fd is None:
            raise OSError(errno.ENOENT, f"process {pid} has no ring called {name}")
        page = os.sysconf("SC_PAGE_SIZE")
        self.consumer = mmap.mmap(self.fd, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=0)
        self.producer = mmap.mmap(self.fd, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def now(self):
        read = struct.unpack_from("=Q", self.consumer)[0]
        return max(0, struct.unpack_from("=Q", self.producer)[0] - read)

    def close(self):
        self.consumer.close()
        self.producer.close()
        os.close(self.fd)
