"""Times PyTorch training steps, to measure the cost of tracing.

usage: SECONDS [STACKS]; with STACKS, PyTorch records its own memory history.
"""
import json
import sys
import time

import torch

if len(sys.argv) > 2:  # PyTorch's own recorder: python, all
    torch.cuda.memory._record_memory_history(stacks=sys.argv[2])
device = torch.device("cuda:0")
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(24)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 1024, device=device)
print("READY", flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    begin = time.time()
    for _ in range(20):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print("STEP", json.dumps([begin, (time.time() - begin) / 20]), flush=True)
