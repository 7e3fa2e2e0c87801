"""The result file of a machine: one JSON file with a section for each measurement."""
import json
import os


def to_json(value, depth=0):
    """Formats JSON with one line per table row, so that diffs are readable."""
    if depth < 2 and isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {to_json(one, depth + 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(rows) + "\n}" + ("\n" if depth == 0 else "")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(rounded(one)) for one in value) + "\n]"
    return json.dumps(rounded(value))


def rounded(value):
    """Rounds numbers to four significant digits: measurements are not more precise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return value


def store(path, machine, section, value, facts):
    """Replaces one section of the file and keeps the others."""
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            results = json.load(file)
    results["machine"] = machine
    results[section] = {"facts": facts, **value}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w") as file:
        file.write(to_json(results))
    os.replace(path + ".new", path)
