#!/usr/bin/env python3
"""Creates a hundred events that stay alive, and streams from PyTorch's pool."""
import json
import time

import torch

events = []
for _ in range(100):
    event = torch.cuda.Event()
    event.record()
    events.append(event)
streams = [torch.cuda.Stream() for _ in range(8)]
x = torch.randn(512, 512, device="cuda")
for stream in streams:
    with torch.cuda.stream(stream):
        x = x @ x.clamp(-1, 1)
torch.cuda.synchronize()
print("EXPECT_AT_LEAST " + json.dumps({"event": 100}), flush=True)
time.sleep(1.5)
