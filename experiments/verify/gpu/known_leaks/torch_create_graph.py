"""Calls backward(create_graph=True) and adds up gradients: each keeps the graph of all earlier ones."""
import torch
from steps import FIXED, steps
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).cuda()


def train(batch):
    loss = model(batch).pow(2).mean()  # leaks here
    loss.backward(create_graph=True)  # leaks here
    if FIXED:
        for parameter in model.parameters():
            parameter.grad = None


for _ in steps():
    train(torch.randn(256, 256, device="cuda"))  # leaks here
