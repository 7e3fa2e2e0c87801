"""Computes for a while, then allocates: a tracer is attached in between."""
import time

import torch
from hold import hold

device = torch.device("cuda:0")
before = torch.empty(1 << 30, dtype=torch.uint8, device=device)
x = torch.randn(512, 512, device=device)
print("READY", flush=True)
end = time.time() + 6
while time.time() < end:
    x = (x @ x).tanh()
torch.cuda.synchronize()
kept = [torch.empty(n << 20, dtype=torch.uint8, device=device) for n in (30, 40, 50)]
hold("three tensors", bytes=(30 + 40 + 50) << 20, before=torch.cuda.memory_reserved() - ((30 + 40 + 50) << 20))
