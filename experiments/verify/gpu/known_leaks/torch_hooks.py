"""Registers a forward hook that keeps the activations of every batch."""
import torch
from steps import FIXED, steps
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU()).cuda()
seen = []
model[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))


@torch.no_grad()
def inspect(batch):
    model(batch)  # leaks here
    if FIXED:
        seen.clear()


for _ in steps():
    inspect(torch.randn(128, 512, device="cuda"))
