"""Reads a flame graph as XML. Prints its title, its frames and the total of the outermost one as JSON."""

import json
import re
import sys
from xml.etree import ElementTree

root = ElementTree.parse(sys.argv[1]).getroot()
# Tags are prefixed with their namespace.
SVG = root.tag.removesuffix("svg")
assert root.tag == f"{SVG}svg" and SVG.endswith("/2000/svg}")
shown = [title.text for title in root.iter(f"{SVG}title")]
frames = [re.fullmatch(r"(.*) \(([0-9,]+) (bytes|allocations), .*\)", text) for text in shown]
(total,) = [match[2] for match in frames if match[1] == "all"]
title = next(text.text for text in root.iter(f"{SVG}text") if text.get("id") == "title")
names = [match[1] for match in frames if match[1] != "all"]
print(json.dumps({"title": title, "frames": names, "total": int(total.replace(",", ""))}))
