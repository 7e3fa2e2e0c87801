"""Fills a cache of tensors for 20 seconds, then evicts the oldest ones: not a leak."""
import argparse
import collections
import time

import torch


class Cache:
    def __init__(self, capacity):
        self.capacity, self.entries = capacity, collections.OrderedDict()

    def get(self, key, make):
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key]
        while len(self.entries) >= self.capacity:
            self.entries.popitem(last=False)
        self.entries[key] = make(key)
        return self.entries[key]


def embedding(key):
    return torch.full((1024, 1024), float(key), device="cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--fill-seconds", type=float, default=20)
    options = parser.parse_args()
    pause, capacity = 0.02, 200
    weight = torch.randn(1024, 1024, device="cuda")
    for _ in range(20):
        (weight @ weight).sum().item()
    print("READY", flush=True)
    cache, begin, newest = Cache(capacity), time.monotonic(), 0
    while (now := time.monotonic() - begin) < options.seconds:
        # New keys appear at a constant rate; between them the newest one is requested again.
        newest = int(now * capacity / options.fill_seconds)
        entry = cache.get(newest, embedding)
        (entry @ weight).sum().item()
        time.sleep(pause)
    torch.cuda.synchronize()
    print(f"{newest + 1} keys, {len(cache.entries)} entries, {torch.cuda.memory_allocated()} bytes allocated", flush=True)


if __name__ == "__main__":
    main()
