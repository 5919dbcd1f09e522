"""The diffs of docs/changing.md, which several tests apply."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")
DIFFS: dict[str, str] = dict(
    re.findall(r"^## An? ([a-z ]+)$.*?^```diff\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
)
"""The diff under each heading, `An activation` and the like, by its last words."""
CALLBACK, PLUGIN = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
"""The two changes that need no place in the package."""
