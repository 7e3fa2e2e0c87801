"""Keeps the key-value cache of each chat session, also of those that ended."""
import torch
from steps import FIXED, steps

sessions = {}


def prefill(session):
    sessions[session] = torch.zeros(2, 256, 1024, device="cuda")  # leaks here


for number in steps():
    prefill(number)
    if FIXED and number >= 8:
        del sessions[number - 8]
