"""Keeps CuPy arrays, each larger than the free memory of the pool."""
import time

import cupy


def keep(store, size):
    store.append(cupy.zeros(size, dtype=cupy.uint8))


def main():
    store = []
    keep(store, 1 << 20)
    print("READY", flush=True)
    end = time.time() + 15
    number = 0
    while time.time() < end and number < 200:
        number += 1
        keep(store, (1 << 20) * (number % 7 + 1))
        time.sleep(0.05)
    time.sleep(2)


main()
