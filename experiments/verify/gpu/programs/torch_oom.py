"""Requests more memory than the device has."""
import torch
from hold import hold

device = torch.device("cuda:0")
kept = torch.empty(4 << 30, dtype=torch.uint8, device=device)
try:
    torch.empty(4 << 40, dtype=torch.uint8, device=device)
except torch.OutOfMemoryError as error:
    print("OutOfMemoryError:", str(error).splitlines()[0], flush=True)
segments = torch.cuda.memory_snapshot()
hold("after the error", reserved=torch.cuda.memory_reserved(), addresses=[s["address"] for s in segments],
     out_of_memory=4 << 40)
