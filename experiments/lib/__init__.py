"""Shared code of the experiments: paths, processes, machine facts, results, the oracle, charts, BPF objects."""
