#!/usr/bin/env python3
"""Validates a file with the schema of speedscope, and prints the totals of its profiles."""

import json
import os
import sys

import jsonschema

with open(os.path.join(os.path.dirname(__file__), "speedscope-schema.json")) as file:
    schema = json.load(file)
with open(sys.argv[1]) as file:
    found = json.load(file)
jsonschema.validate(found, schema, cls=jsonschema.Draft7Validator)

frames = found["shared"]["frames"]
profiles = []
for profile in found["profiles"]:
    assert len(profile["samples"]) == len(profile["weights"])
    assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
    for sample in profile["samples"]:
        assert sample and all(0 <= frame < len(frames) for frame in sample)
    stacks = [[frames[frame]["name"] for frame in sample] for sample in profile["samples"]]
    profiles.append({"name": profile["name"], "sum": profile["endValue"], "stacks": stacks})
texts = [text for frame in frames for text in (frame["name"], frame.get("file", ""))]
texts += [found["name"]] + [profile["name"] for profile in profiles]
json.dump({"profiles": profiles, "texts": texts}, sys.stdout)
