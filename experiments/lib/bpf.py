"""Reads the kernel's BPF objects (programs, maps, links) of any process through bpf(2) and /proc. Needs root."""
import contextlib
import ctypes
import errno
import mmap
import os
import platform
import struct

SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
# Commands of bpf(2), and types of programs and maps.
NEXT_KEY, INFO, NEXT_PROGRAM = 4, 15, 11
KPROBE = 2
BY_ID = {"prog": 13, "map": 14, "link": 30}
HASH, LRU, PERCPU_HASH, RING = 1, 9, 5, 27
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(command, attributes):
    """Calls bpf(2) and returns its result and the attributes as the kernel left them."""
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = LIBC.syscall(SYSCALL, command, buffer, 128)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result, buffer.raw


def exists(kind, number):
    """Returns whether the kernel has an object (prog, map or link) with this id."""
    try:
        os.close(call(BY_ID[kind], struct.pack("=II", number, 0))[0])
        return True
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise


def probe_programs_exist():
    """Returns whether any process has loaded programs for probes."""
    number = 0
    while True:
        try:
            number = struct.unpack_from("=II", call(NEXT_PROGRAM, struct.pack("=II", number, 0))[1])[1]
            fd = call(BY_ID["prog"], struct.pack("=II", number, 0))[0]
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        info = ctypes.create_string_buffer(128)
        call(INFO, struct.pack("=IIQ", fd, 128, ctypes.addressof(info)))
        os.close(fd)
        if struct.unpack_from("=I", info.raw)[0] == KPROBE:
            return True


def owned(pid):
    """Returns the BPF objects that a process has open: sets of ids by kind."""
    found = {"map": set(), "prog": set(), "link": set()}
    directory = f"/proc/{pid}/fdinfo"
    for name in os.listdir(directory):
        try:
            with open(f"{directory}/{name}") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(":")
            if key.endswith("_id") and key[:-3] in found:
                found[key[:-3]].add(int(value))
    return found


def program_nanos(pid):
    """Returns the run time of the BPF programs of a process; the kernel counts it only inside of `statistics()`."""
    programs, directory = {}, f"/proc/{pid}/fdinfo"
    for name in os.listdir(directory):
        try:
            with open(f"{directory}/{name}") as file:
                fields = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
        except OSError:
            continue
        if "run_time_ns" in fields:
            programs[fields["prog_id"]] = int(fields["run_time_ns"])
    return sum(programs.values())


@contextlib.contextmanager
def statistics():
    """Makes the kernel count the run time of BPF programs, which adds some time to each run."""
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
    """A BPF map."""

    def __init__(self, number):
        self.fd = call(BY_ID["map"], struct.pack("=II", number, 0))[0]
        info = ctypes.create_string_buffer(88)
        call(INFO, struct.pack("=IIQ", self.fd, 88, ctypes.addressof(info)))
        self.type, self.id, self.key_size, self.value_size, self.max_entries, _ = struct.unpack_from("=6I", info.raw)
        self.name = info.raw[24:40].split(b"\0")[0].decode()

    def keys(self):
        """Yields all keys of a hash table, as bytes."""
        key, following = None, ctypes.create_string_buffer(self.key_size)
        while True:
            previous = ctypes.create_string_buffer(key, self.key_size) if key is not None else None
            address = ctypes.addressof(previous) if previous else 0
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
    """Fill level of a ring buffer, from the two positions that the kernel maps into memory."""

    def __init__(self, pid, name="records"):
        self.bytes, self.fd = 0, None
        for bpf_map in maps_of(pid):
            if self.fd is None and bpf_map.type == RING and bpf_map.name == name:
                self.fd, self.bytes = bpf_map.fd, bpf_map.max_entries
            else:
                bpf_map.close()
        if self.fd is None:
            raise OSError(errno.ENOENT, f"process {pid} has no ring buffer {name}")
        page = os.sysconf("SC_PAGE_SIZE")
        self.consumer = mmap.mmap(self.fd, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=0)
        self.producer = mmap.mmap(self.fd, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def unread_bytes(self):
        read = struct.unpack_from("=Q", self.consumer)[0]
        return max(0, struct.unpack_from("=Q", self.producer)[0] - read)

    def close(self):
        self.consumer.close()
        self.producer.close()
        os.close(self.fd)
