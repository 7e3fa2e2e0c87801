#!/usr/bin/env python3
"""Validates the dashboards of contrib/grafana with Grafana's own types, from the npm package @grafana/schema.

usage: target/python/bin/python experiments/verify/dashboards.py

Needs npm; packages are installed into target/bench/grafana. Types become JSON schemas. Fields that a type requires may be
missing, because Grafana adds its defaults; unknown fields and wrong values are errors, except those in KNOWN.
"""
import json
import subprocess
import sys
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "target/bench/grafana"
PACKAGES = ["@grafana/schema@13.2.3", "ts-json-schema-generator@2", "typescript@5"]
TYPES = DIRECTORY / "node_modules/@grafana/schema/dist/types/raw"
# Grafana writes the query of a variable twice. The query of an annotation has the fields of its data source.
KNOWN = {("definition",), ("expr", "textFormat", "titleFormat")}


def schema(path, name):
    """Returns the validator of a type."""
    command = ["node_modules/.bin/ts-json-schema-generator", "--path", TYPES / path, "--type", name, "--no-type-check"]
    done = subprocess.run(command, cwd=DIRECTORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{path}, {name}: {done.stderr[-1000:]}")
    return jsonschema.Draft7Validator(json.loads(done.stdout))


def problems(validator, value):
    """Yields each field that differs from its type, with its place."""
    for error in validator.iter_errors(value):
        # Of a union, those of the alternative that fits best.
        best = max((len(one.absolute_path) for one in error.context), default=0)
        for one in [one for one in error.context if len(one.absolute_path) == best] or [error]:
            names = () if one.validator != "additionalProperties" else tuple(sorted(set(one.instance) - set(one.schema["properties"])))
            if one.validator != "required" and names not in KNOWN:
                yield f"{'/'.join(map(str, one.absolute_path))}: {one.message}"


def main():
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--prefix", DIRECTORY, "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *PACKAGES], check=True)
    whole, parts, wrong = schema("dashboard/x/types.gen.d.ts", "Dashboard"), {}, 0

    def part(kind, name):
        if (kind, name) not in parts:
            parts[kind, name] = schema(f"composable/{kind}/panelcfg/x/types.gen.d.ts", name)
        return parts[kind, name]

    for path in sorted((ROOT / "contrib/grafana").glob("*.json")):
        dashboard = json.loads(path.read_text())
        found = [(dashboard["title"], one) for one in problems(whole, dashboard)]
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        for panel in panels:
            fields = panel["fieldConfig"]["defaults"].get("custom")
            found += [(panel["title"], one) for one in problems(part(panel["type"], "Options"), panel.get("options", {}))]
            found += [(panel["title"], one) for one in (problems(part(panel["type"], "FieldConfig"), fields) if fields else ())]
        print(f"{path.name}: {len(panels)} panels, {len(found)} problems")
        for where, one in found:
            print(f"  {where}: {one}")
        wrong += len(found)
    sys.exit(wrong > 0)


main()
