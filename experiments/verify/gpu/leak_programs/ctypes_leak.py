"""Runs a training loop next to code that allocates through the driver and leaks some of the memory."""
import argparse
import ctypes
import time

import torch
from torch import nn

DRIVER = ctypes.CDLL("libcuda.so.1")
DRIVER.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
DRIVER.cuMemFree_v2.argtypes = [ctypes.c_uint64]


def checked(code, function):
    if code != 0:
        raise RuntimeError(f"{function} failed with {code}")


def allocate_scratch(size):
    pointer = ctypes.c_uint64()
    checked(DRIVER.cuMemAlloc_v2(ctypes.byref(pointer), size), "cuMemAlloc")  # leaks here
    return pointer.value


def free_scratch(pointer):
    checked(DRIVER.cuMemFree_v2(pointer), "cuMemFree")


def train_step(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=True)
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    width = 512
    # PyTorch makes the primary context current on this thread.
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for _ in range(20):
        train_step(model, optimizer, torch.randn(128, width, device="cuda"))
    torch.cuda.synchronize()
    print("READY", flush=True)
    steps, leaked, end = 0, 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        train_step(model, optimizer, torch.randn(128, width, device="cuda"))
        steps += 1
        scratch = allocate_scratch(2 << 20)
        if steps % 8 == 0:
            leaked += 1
        else:
            free_scratch(scratch)
        time.sleep(0.02)
    torch.cuda.synchronize()
    print(f"{steps} steps, {leaked} allocations of 2 MiB leaked", flush=True)


if __name__ == "__main__":
    main()
