#!/usr/bin/env python3
"""Trains a small network, and keeps a buffer now and then."""
from account import MIB, Account, at_least, parser, sleep, stopped

WIDTH = 1024


def options():
    found = parser(__doc__)
    add = found.add_argument
    add("--steps", type=at_least(0), default=200, help="how many steps")
    add("--keep-every", type=at_least(1), default=20, help="keep one buffer every so many steps")
    add("--step-ms", type=at_least(0), default=10, help="how long to wait after a step")
    add("--mb", type=at_least(1), default=8, help="the size of a buffer and of a batch in MiB")
    add("--empty-cache-every", type=at_least(0), default=0,
        help="give PyTorch's cache back to the driver every so many steps; 0: never")
    add("--fail-once", action="store_true", help="ask once for more memory than the device has, at the end")
    return found.parse_args()


def main():
    asked = options()
    account = Account(asked)
    torch = account.torch
    torch.manual_seed(asked.seed)
    linear = lambda: torch.nn.Linear(WIDTH, WIDTH, device=account.device)
    model = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    rows = asked.mb * MIB // (4 * WIDTH)
    steps = 0
    for step in range(1, asked.steps + 1):
        if stopped():
            break
        batch = torch.randn(rows, WIDTH, device=account.device)
        loss = model(batch).square().mean()
        # The backward pass runs on a thread of PyTorch's own, which allocates, too.
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del batch, loss
        if step % asked.keep_every == 0:
            account.take(asked.mb * MIB)
        if asked.empty_cache_every and step % asked.empty_cache_every == 0:
            torch.cuda.empty_cache()
        steps = step
        if not sleep(asked.step_ms / 1000):
            break
    asked_for = 0
    if asked.fail_once and not stopped():
        asked_for = torch.cuda.get_device_properties(account.device).total_memory + (1 << 30)
        try:
            account.take(asked_for)
        except RuntimeError:
            pass
    account.end(steps=steps, asked_in_vain=asked_for)


if __name__ == "__main__":
    main()
