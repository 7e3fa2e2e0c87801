"""Runs a training loop with evaluations that does not leak."""
import argparse
import time

import torch
from torch import nn


def train_step(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=True)
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, width):
    batches = [torch.randn(256, width, device="cuda") for _ in range(8)]
    return sum(model(batch).pow(2).mean().item() for batch in batches) / len(batches)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    width = 512
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(20):
        train_step(model, optimizer, torch.randn(128, width, device="cuda"))
    torch.cuda.synchronize()
    print("READY", flush=True)
    losses, steps, end = [], 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        # Batch sizes vary, as with sentences of different length.
        rows = 64 + 32 * (steps % 5)
        losses.append(train_step(model, optimizer, torch.randn(rows, width, device="cuda")))
        steps += 1
        if steps % 100 == 0:
            losses.append(evaluate(model, width))
        time.sleep(0.02)
    torch.cuda.synchronize()
    print(f"{steps} steps, {torch.cuda.memory_allocated()} bytes allocated", flush=True)


if __name__ == "__main__":
    main()
