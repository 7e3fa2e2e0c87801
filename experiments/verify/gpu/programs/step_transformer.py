"""Times training steps of a small transformer, to measure the cost of tracing.

usage: SECONDS [STACKS]; with STACKS, PyTorch records its own memory history.
"""
import json
import sys
import time

import torch

if len(sys.argv) > 2:  # PyTorch's own recorder: python, all
    torch.cuda.memory._record_memory_history(stacks=sys.argv[2])
device = torch.device("cuda:0")
layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 12).to(device)
head = torch.nn.Linear(1024, 32000).to(device)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4)
x = torch.randn(16, 512, 1024, device=device)
y = torch.randint(0, 32000, (16, 512), device=device)
print("READY", flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    begin = time.time()
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(head(model(x)).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print("STEP", json.dumps([begin, (time.time() - begin) / 2]), flush=True)
