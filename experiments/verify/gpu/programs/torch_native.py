"""Runs a small training loop, for PyTorch's native allocator and for expandable segments."""
import torch
from hold import hold


def account(what):
    torch.cuda.synchronize()
    segments = torch.cuda.memory_snapshot()
    hold(
        what,
        reserved=torch.cuda.memory_reserved(),
        addresses=[s["address"] for s in segments if not s.get("is_expandable")],
    )


device = torch.device("cuda:0")
model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
).to(device)
optimizer = torch.optim.Adam(model.parameters())
account("model")
kept = []
for step in range(20):
    x = torch.randn(512, 1024, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(torch.empty(3 << 20, device=device))
account("trained")
kept.clear()
torch.cuda.empty_cache()
account("emptied")
