"""Tell a notebook how to show objects of the package that have no display of their own.

Nothing here imports what it shows: the notebook asks for it by name when it has such an object.
"""

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.data.tokenizers import Tokenizer
    from gpt.model import GPT

TOKENIZERS = (
    ("gpt.data.tokenizers", "CharTokenizer"),
    ("gpt.data.tokenizers", "ByteTokenizer"),
    ("gpt.data.bpe", "BPETokenizer"),
)


def register() -> None:
    """Register the displays of models and tokenizers with IPython; nothing happens where it does not run."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    if shell is None:
        return
    add: Callable[[str, str, Callable[[Any], str]], None] = shell.display_formatter.formatters[
        "text/html"
    ].for_type_by_name
    add("gpt.model.gpt", "GPT", model_html)
    for module, name in TOKENIZERS:
        add(module, name, tokenizer_html)


def model_html(model: "GPT") -> str:
    """Return the parameters of a model by component, and its modules as torch prints them."""
    from gpt.inspection.show import parameters

    modules = f"<details><summary>modules</summary><pre>{html.escape(repr(model))}</pre></details>"
    return parameters(model)._repr_html_() + modules


def tokenizer_html(tokenizer: "Tokenizer") -> str:
    """Return the tokens of a tokenizer with their ids."""
    from gpt.inspection.show import vocabulary

    return vocabulary(tokenizer)._repr_html_()
