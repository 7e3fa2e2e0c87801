"""Runs threads that allocate tensors, and free those of any thread."""
import random
import threading

import torch
from hold import hold

device = torch.device("cuda:0")
torch.zeros(1, device=device)
shared, lock = [], threading.Lock()


def work(seed):
    random.seed(seed)
    for _ in range(200):
        tensor = torch.empty(random.randrange(1 << 20, 30 << 20), dtype=torch.uint8, device=device)
        with lock:
            shared.append(tensor)
            del tensor
            while len(shared) > 12:
                del shared[random.randrange(len(shared))]
        if random.random() < 0.05:
            torch.cuda.empty_cache()


threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
torch.cuda.synchronize()
segments = torch.cuda.memory_snapshot()
hold("joined", reserved=torch.cuda.memory_reserved(), addresses=[s["address"] for s in segments])
