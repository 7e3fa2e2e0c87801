"""Trains a network with a common leak: its evaluation keeps each loss, and with it the whole graph."""
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()


def evaluate(model, batch, history):
    history.append(model(batch).pow(2).mean())


def train(seconds):
    model = nn.Sequential(*[Block(1024) for _ in range(6)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    history = []
    for _ in range(10):
        step(model, optimizer, torch.randn(512, 1024, device="cuda"))
    print("READY", flush=True)
    end = time.time() + seconds
    while time.time() < end:
        batch = torch.randn(512, 1024, device="cuda")
        step(model, optimizer, batch)
        evaluate(model, batch, history)
        time.sleep(0.02)
    torch.cuda.synchronize()


if __name__ == "__main__":
    train(25)
