"""Keeps each validation loss for a plot, and with it the graph and the activations (PyTorch FAQ, "accumulate history")."""
import torch
from steps import FIXED, steps
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
history = []


def validate(batch):
    loss = model(batch).pow(2).mean()  # leaks here
    history.append(loss.item() if FIXED else loss)


for _ in steps():
    validate(torch.randn(128, 512, device="cuda"))  # leaks here
