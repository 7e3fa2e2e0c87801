"""Creates a process group for every evaluation and does not destroy it: each has an NCCL communicator."""
import os

import torch
import torch.distributed as dist
from steps import FIXED, steps

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = dist.HashStore()
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))


def evaluate(value):
    group = dist.new_group([0])  # leaks here
    dist.all_reduce(value, group=group)  # leaks here
    torch.cuda.synchronize()
    if FIXED:
        dist.destroy_process_group(group)


for _ in steps(interval=1.0):
    evaluate(torch.ones(1024, device="cuda"))
