"""Sends tensors to another process, which keeps them: their memory stays allocated here."""
import torch
import torch.multiprocessing as mp
from steps import FIXED, steps


def consume(queue, fixed):
    kept = []
    while True:
        tensor = queue.get()
        if not fixed:
            kept.append(tensor)
        del tensor


def produce(queue):
    queue.put(torch.ones(1 << 19, device="cuda"))  # leaks here


if __name__ == "__main__":
    mp.set_start_method("spawn")
    pipe = mp.Queue(maxsize=4)
    consumer = mp.Process(target=consume, args=(pipe, FIXED), daemon=True)
    consumer.start()
    for _ in steps():
        produce(pipe)
