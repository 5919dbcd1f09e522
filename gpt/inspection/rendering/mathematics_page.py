"""Make the page `docs/mathematics.md`: the text of `mathematics.md` with the source of every function it names."""

import inspect
import re
from importlib import resources

from gpt.inspection.rendering import mathematics


def mathematics_page() -> str:
    """Return the page as Markdown; each line `{name}` of the text becomes the source of that function."""
    text = resources.files(__package__).joinpath("mathematics.md").read_text(encoding="utf-8")
    return re.sub(r"^{(\w+)}$", lambda match: _source(match[1]), text, flags=re.MULTILINE)


def _source(name: str) -> str:
    return f"```python\n{inspect.getsource(getattr(mathematics, name))}```"
