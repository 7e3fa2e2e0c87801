"""Captures a CUDA graph with PyTorch and replays it many times."""
import torch
from hold import hold


def account(what):
    torch.cuda.synchronize()
    segments = torch.cuda.memory_snapshot()
    hold(what, reserved=torch.cuda.memory_reserved(), addresses=[s["address"] for s in segments])


device = torch.device("cuda:0")
x = torch.randn(1024, 1024, device=device)
for _ in range(3):
    y = (x @ x).relu()
account("before the capture")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = (x @ x).relu().sum()
account("captured")
for _ in range(1000):
    graph.replay()
account("replayed 1000 times")
