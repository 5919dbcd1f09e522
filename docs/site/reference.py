"""Pages made of the program itself: its commands, the keys of a configuration, and its names in
Python.
"""

import contextlib
import io
import json
import os
from importlib import import_module
from typing import Any
from unittest.mock import patch

from docs.site.chapters import ROOT
from gpt.cli.commands import COMMANDS
from gpt.cli.explain import VIEWS

NAMES = {
    "train": ("Train", "train Run Callback plot load_plugins"),
    "generate": (
        "Generate",
        "load save generate stream generate_tokens SamplingParams build_runtime quantize",
    ),
    "inspect": (
        "Look inside",
        (
            "attention_patterns logit_lens surprisal trace_shapes run_with_cache "
            "ActivationCache show edits"
        ),
    ),
    "data": ("Data", "CharTokenizer ByteTokenizer"),
    "configuration": ("Configuration", "load_config Config ModelConfig"),
    "model": ("Parts of the model", "GPT model.attention model.layers model.positions"),
    "errors": ("Errors", "system.errors"),
}
"""The pages of the reference: the title of each, and its names in `gpt`."""


def names(page: str) -> str:
    """Return a page of the reference, which mkdocstrings fills in from the docstrings."""
    title, listed = NAMES[page]
    return f"# {title}\n\n" + "\n\n".join(f"::: gpt.{name}" for name in listed.split()) + "\n"


def command(name: str) -> str:
    """Return the page of a command: what `--help` prints, for `explain` also that of each view."""
    sections = [f"# gpt {name}\n\n{_help(name)}"]
    if name == "explain":
        views = (view.__name__.rpartition(".")[2] for view in VIEWS)
        sections += [f"## gpt explain {view}\n\n{_help(name, view)}" for view in views]
    return "\n\n".join(sections)


def _help(name: str, *words: str) -> str:
    """Return what `gpt NAME --help` prints in a terminal of 80 columns, whatever runs this."""
    main, printed = import_module(f"gpt.cli.{COMMANDS[name].file}").main, io.StringIO()
    with (
        patch.dict(os.environ, COLUMNS="80", NO_COLOR="1"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*words, "--help"])
    usage, description, options = printed.getvalue().strip().split("\n\n", maxsplit=2)
    return f"{description}\n\n```text\n{usage}\n\n{options}\n```"


def configuration_keys() -> str:
    """Return the page with the keys of a configuration, a table for each section."""
    schema = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))
    text = "# Keys of a configuration\n\nEvery key can be left out; it then has its default."
    for section, reference in schema["properties"].items():
        properties = schema["$defs"][reference["$ref"].rpartition("/")[2]]["properties"]
        text += f"\n\n## {section}\n\n| key | values | default | meaning |\n|---|---|---|---|"
        for key, value in properties.items():
            cells = (
                f"`{section}.{key}`",
                _values(value),
                f"`{json.dumps(value['default'])}`",
                _meaning(value),
            )
            text += "\n| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    return text + "\n"


def _meaning(value: dict[str, Any]) -> str:
    return " ".join(value.get("description", "").split())


def _values(value: dict[str, Any]) -> str:
    """Return what a key accepts, in words: its choices, or its type with the bounds."""
    if "anyOf" in value:
        return ", ".join(_values(each) for each in value["anyOf"])
    if "enum" in value or "const" in value:
        return ", ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    words = [f"{word} {value[name]}" for name, word in bounds.items() if name in value]
    return " ".join([value["type"], *words])
