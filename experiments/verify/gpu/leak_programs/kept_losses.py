"""Runs a training loop that keeps losses with their graphs: each holds the activations of its step."""
import argparse
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def train_step(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=True)
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()


def evaluate(model, batch, history):
    loss = model(batch).pow(2).mean()  # leaks here
    # `loss.item()` would keep a number.
    history.append(loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    width = 512
    model = nn.Sequential(*[Block(width) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(20):
        train_step(model, optimizer, torch.randn(128, width, device="cuda"))
    torch.cuda.synchronize()
    print("READY", flush=True)
    history, steps, end = [], 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        # The graph of a kept loss keeps the tensors that it was computed from.
        batch = torch.randn(128, width, device="cuda")  # leaks here
        train_step(model, optimizer, batch)
        steps += 1
        if steps % 10 == 0:
            evaluate(model, batch, history)
        time.sleep(0.02)
    torch.cuda.synchronize()
    print(f"{steps} steps, {len(history)} losses kept, {torch.cuda.memory_allocated()} bytes allocated", flush=True)


if __name__ == "__main__":
    main()
