"""Runs a function under PyTorch's profiler and prints the number of launches of each kernel."""
import collections
import json

import torch
from torch.profiler import ProfilerActivity, profile


def counted(work):
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
        torch.cuda.synchronize()
    counts = collections.Counter()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name] += 1
    for name in [name for name in counts if name.startswith(("Memcpy", "Memset"))]:
        del counts[name]
    print("COUNTS", json.dumps(counts), flush=True)
