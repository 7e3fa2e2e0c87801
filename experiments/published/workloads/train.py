#!/usr/bin/env python3
"""Trains a small network and keeps a buffer occasionally."""
from account import MIB, Account, at_least, parser, sleep, stopped

WIDTH = 1024


def parse_args():
    found = parser(__doc__)
    add = found.add_argument
    add("--steps", type=at_least(0), default=200, help="number of steps")
    add("--keep-every", type=at_least(1), default=20, help="keep one buffer every this many steps")
    add("--step-ms", type=at_least(0), default=10, help="pause after a step in milliseconds")
    add("--mb", type=at_least(1), default=8, help="size of a buffer and of a batch in MiB")
    add("--empty-cache-every", type=at_least(0), default=0,
        help="empty PyTorch's cache every this many steps; 0: never")
    add("--fail-once", action="store_true", help="request more memory than the device has, once at the end")
    return found.parse_args()


def main():
    args = parse_args()
    account = Account(args)
    torch = account.torch
    torch.manual_seed(args.seed)
    linear = lambda: torch.nn.Linear(WIDTH, WIDTH, device=account.device)
    model = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    rows = args.mb * MIB // (4 * WIDTH)
    steps = 0
    for step in range(1, args.steps + 1):
        if stopped():
            break
        batch = torch.randn(rows, WIDTH, device=account.device)
        loss = model(batch).square().mean()
        # The backward pass runs on a thread of PyTorch, which also allocates.
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del batch, loss
        if step % args.keep_every == 0:
            account.allocate(args.mb * MIB)
        if args.empty_cache_every and step % args.empty_cache_every == 0:
            torch.cuda.empty_cache()
        steps = step
        if not sleep(args.step_ms / 1000):
            break
    failed_request = 0
    if args.fail_once and not stopped():
        failed_request = torch.cuda.get_device_properties(account.device).total_memory + (1 << 30)
        try:
            account.allocate(failed_request)
        except RuntimeError:
            pass
    account.end(steps=steps, failed_request_bytes=failed_request)


if __name__ == "__main__":
    main()
