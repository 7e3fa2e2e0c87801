"""Allocates with PyTorch from CUDA's pools: PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync."""
import torch
from hold import hold


def account(what):
    torch.cuda.synchronize()
    hold(what, pool_reserved=torch.cuda.memory_reserved(), used=torch.cuda.memory_allocated())


device = torch.device("cuda:0")
kept = [torch.empty(5 << 20, dtype=torch.uint8, device=device) for _ in range(10)]
account("ten tensors")
del kept[3:7]
account("four freed")
torch.cuda.empty_cache()
account("emptied")
x = torch.randn(2048, 2048, device=device)
y = x @ x
account("a product")
