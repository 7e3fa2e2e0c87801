"""Captures a CUDA graph for every sequence length: each has a private pool. The fix rounds lengths up to a few sizes."""
import torch
from steps import FIXED, steps

weight = torch.randn(512, 512, device="cuda")
graphs = {}
# cuBLAS cannot be initialized in a capture.
(weight @ weight).relu()
torch.cuda.synchronize()


def capture(length):
    x = torch.zeros(length, 512, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # leaks here
        y = (x @ weight).relu() @ weight  # leaks here
    return graph, x, y


def replay(length):
    if FIXED:
        length = 1 << (length - 1).bit_length()
    if length not in graphs:
        graphs[length] = capture(length)  # leaks here
    graphs[length][0].replay()


for number in steps():
    replay(64 + number)
