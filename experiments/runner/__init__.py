"""The parts of `experiments/run`."""
