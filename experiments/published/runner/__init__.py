"""Runs the published experiments, compares their reports, and writes their page."""
