"""A small model of PyTorch's caching allocator, written from its documented rules.

It keeps blocks as objects and its own statistics, so that a reader of its snapshots can be compared
with numbers that were not reconstructed from a trace.
"""
import bisect

GRAIN, SMALL, SMALL_SEGMENT = 512, 1 << 20, 2 << 20
LARGE_SEGMENT, MIN_LARGE, ROUND_LARGE = 20 << 20, 10 << 20, 2 << 20


class Block:
    __slots__ = ("addr", "frames", "next", "prev", "requested", "segment", "size", "state")

    def __init__(self, addr, size, segment):
        self.addr, self.size, self.segment = addr, size, segment
        self.requested, self.state, self.prev, self.next, self.frames = 0, "inactive", None, None, []


class Segment:
    def __init__(self, addr, size, stream, small, expandable, frames, pool):
        self.addr, self.size, self.stream, self.small = addr, size, stream, small
        self.expandable, self.frames, self.pool = expandable, frames, pool
        self.first = Block(addr, size, self)


class Level:
    def __init__(self):
        self.current = self.peak = 0

    def add(self, n):
        self.current += n
        self.peak = max(self.peak, self.current)


class Allocator:
    def __init__(self, device=0, base=0x7F0000000000, max_split=None, divisions=None, expandable=False,
                 start_us=1_700_000_000_000_000):
        self.device, self.next_addr, self.max_split = device, base, max_split
        self.divisions = divisions or [0] * 16
        self.expandable, self.now = expandable, start_us
        self.segments, self.free_lists, self.live, self.trace = [], {}, {}, []
        self.growing = {}
        self.stats = {name: Level() for name in ("allocated", "requested", "active", "reserved")}

    # -- output

    def entry(self, action, size, stream, frames, **more):
        self.now += 3
        # PyTorch creates a new string for the compile context of every entry.
        entry = {"action": action, **more, "size": size, "stream": stream, "time_us": self.now,
                 "compile_context": "".join(("N", "/A")), "user_metadata": ""}
        if frames is not None:
            entry["frames"] = frames
        self.trace.append(entry)

    def snapshot_segments(self):
        out = []
        for segment in sorted(self.segments, key=lambda s: s.addr):
            blocks, block = [], segment.first
            while block:
                blocks.append({"address": block.addr, "size": block.size,
                               "requested_size": block.requested, "state": block.state,
                               "frames": block.frames if block.state != "inactive" else []})
                block = block.next
            held = [b for b in blocks if b["state"] == "active_allocated"]
            out.append({
                "device": self.device, "address": segment.addr, "total_size": segment.size,
                "allocated_size": sum(b["size"] for b in held),
                "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
                "requested_size": sum(b["requested_size"] for b in held),
                "stream": segment.stream, "segment_type": "small" if segment.small else "large",
                "segment_pool_id": segment.pool, "is_expandable": segment.expandable,
                "frames": segment.frames, "blocks": blocks})
        return out

    def settings(self):
        return {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": self.max_split or -1,
                "garbage_collection_threshold": 0.0, "expandable_segments": self.expandable,
                "roundup_power2_divisions": {str(1 << i): n for i, n in enumerate(self.divisions)}}

    def expected(self):
        return {name: {"current": level.current, "peak": level.peak} for name, level in self.stats.items()}

    # -- sizes

    def rounded(self, size):
        if size < GRAIN:
            return GRAIN
        interval = min(max(size.bit_length() - 1 - 20, 0), 15)
        n = self.divisions[interval]
        if n > 1 and size > GRAIN * n:
            if size & (size - 1) == 0:
                return size
            floor = 1 << (size.bit_length() - 1)
            step = floor >> (n.bit_length() - 1)
            if step == 0:
                return floor * 2
            return size if size % step == 0 else size - size % step + step
        return (size + GRAIN - 1) // GRAIN * GRAIN

    # -- the cache

    def list_of(self, segment):
        return self.free_lists.setdefault((segment.pool, segment.stream, segment.small), [])

    def put_free(self, block):
        bisect.insort(self.list_of(block.segment), (block.size, block.addr, block), key=lambda t: t[:2])

    def take_free(self, block):
        entries = self.list_of(block.segment)
        at = bisect.bisect_left(entries, (block.size, block.addr), key=lambda t: t[:2])
        assert entries[at][2] is block
        entries.pop(at)

    def find(self, rounded, stream, small, pool):
        entries = self.free_lists.get((pool, stream, small), [])
        at = bisect.bisect_left(entries, (rounded, 0), key=lambda t: t[:2])
        if at == len(entries):
            return None
        block = entries[at][2]
        if self.max_split and not small:
            if rounded < self.max_split <= block.size:
                return None
            if rounded >= self.max_split and block.size >= rounded + LARGE_SEGMENT:
                return None
        entries.pop(at)
        return block

    def new_segment(self, rounded, stream, small, frames, pool):
        if self.expandable:
            return self.grow(rounded, stream, small, frames, pool)
        if small:
            size = SMALL_SEGMENT
        elif rounded < MIN_LARGE:
            size = LARGE_SEGMENT
        else:
            size = (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE
        addr, self.next_addr = self.next_addr, self.next_addr + size
        segment = Segment(addr, size, stream, small, False, frames or [], pool)
        self.segments.append(segment)
        self.stats["reserved"].add(size)
        self.entry("segment_alloc", size, stream, frames, addr=addr)
        return segment.first

    def grow(self, rounded, stream, small, frames, pool):
        """Maps more memory at the end of an expandable segment; its last block grows with it."""
        key = (pool, stream, small)
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        segment = self.growing.get(key)
        last = None
        if segment:
            last = segment.first
            while last.next:
                last = last.next
        have = last.size if last and last.state == "inactive" else 0
        size = (rounded - have + page - 1) // page * page
        if not segment:
            addr, self.next_addr = self.next_addr, self.next_addr + (1 << 40)
            segment = self.growing[key] = Segment(addr, size, stream, small, True, frames or [], pool)
            self.segments.append(segment)
            block = segment.first
        else:
            addr = segment.addr + segment.size
            segment.size += size
            if have:
                self.take_free(last)
                last.size += size
                block = last
            else:
                block = Block(addr, size, segment)
                block.prev, last.next = last, block
        self.stats["reserved"].add(size)
        self.entry("segment_map", size, stream, frames, addr=addr)
        return block

    def malloc(self, size, stream=0, frames=None, pool=(0, 0)):
        rounded = self.rounded(size)
        small = rounded <= SMALL
        block = self.find(rounded, stream, small, pool)
        block = block or self.new_segment(rounded, stream, small, frames, pool)
        rest = block.size - rounded
        if small or self.expandable:
            split = rest >= GRAIN
        else:
            split = rest > SMALL and (not self.max_split or rounded < self.max_split)
        if split:
            tail = Block(block.addr + rounded, rest, block.segment)
            tail.prev, tail.next = block, block.next
            if block.next:
                block.next.prev = tail
            block.next, block.size = tail, rounded
            self.put_free(tail)
        block.state, block.requested, block.frames = "active_allocated", size, frames or []
        self.live[block.addr] = block
        self.stats["allocated"].add(block.size)
        self.stats["active"].add(block.size)
        self.stats["requested"].add(size)
        self.entry("alloc", size, stream, frames, addr=block.addr)
        return block.addr

    def free(self, addr, frames=None, pending=False):
        block = self.live.pop(addr)
        self.stats["allocated"].add(-block.size)
        self.stats["requested"].add(-block.requested)
        self.entry("free_requested", block.requested, block.segment.stream, frames, addr=addr)
        block.state = "active_pending_free"
        if not pending:
            self.now -= 3
            self.complete(block, frames)
        return block

    def complete(self, block, frames=None):
        self.entry("free_completed", block.requested, block.segment.stream, frames, addr=block.addr)
        self.stats["active"].add(-block.size)
        block.state = "inactive"
        for other in (block.prev, block.next):
            if other and other.state == "inactive":
                self.take_free(other)
                left, right = (other, block) if other is block.prev else (block, other)
                left.size += right.size
                left.next = right.next
                if right.next:
                    right.next.prev = left
                block = left
        self.put_free(block)

    def empty_cache(self, frames=None):
        for segment in list(self.segments):
            block = segment.first
            while segment.expandable and block:
                following = block.next
                self.unmap(segment, block, frames)
                block = following
            if not segment.expandable and segment.first.state == "inactive" and not segment.first.next:
                self.take_free(segment.first)
                self.segments.remove(segment)
                self.stats["reserved"].add(-segment.size)
                self.entry("segment_free", segment.size, segment.stream, frames, addr=segment.addr)

    def unmap(self, segment, block, frames):
        """Unmaps whole pages at the end of a segment only: holes are beyond this model."""
        page = SMALL_SEGMENT if segment.small else LARGE_SEGMENT
        if block.state != "inactive" or block.next or not block.prev:
            return
        first = (block.addr + page - 1 - segment.addr) // page * page + segment.addr
        size = block.addr + block.size - first
        if size <= 0:
            return
        self.take_free(block)
        block.size -= size
        segment.size -= size
        if block.size:
            self.put_free(block)
        else:
            block.prev.next = None
        self.stats["reserved"].add(-size)
        self.entry("segment_unmap", size, segment.stream, frames, addr=first)
