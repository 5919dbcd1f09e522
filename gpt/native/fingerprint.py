"""Say whether the code that would run is the code whose results the kernels compute.

Kernels stand for some files of the package. `fingerprint.json` has a hash of the syntax tree of
each; `python -m gpt.native.trial` writes it, after it has compared the numbers of the kernels with
those of the code. Before kernels are used, the files on disk must have these hashes, and the
modules in memory must hold what the files define: a notebook or a plugin may have replaced a
function, and a file may have been edited after its import.
"""

import json
from functools import cache
from pathlib import Path

from gpt.native.around_torch import changed_torch
from gpt.native.source_file import change_in_memory, read_source

PACKAGE = Path(__file__).parents[1]
FINGERPRINT = Path(__file__).parent / "fingerprint.json"

TRAINING = ("model/gpt.py", "model/attention.py", "model/layers.py", "model/positions.py")
"""Files that the training kernels stand for."""
DECODING = (*TRAINING, "model/quantized.py", "generation/runner.py")
"""Files that the decoding engine stands for where it computes logits."""
SAMPLING = (
    "generation/sampling.py",
    "generation/tokens.py",
    "generation/runner.py",
    "config/filters.py",
)
"""Files that the decoding engine stands for where it samples tokens."""


def changed_code(files: tuple[str, ...]) -> str | None:
    """Return the first thing that is not what the kernels compute, as part of a message, or None.

    Args:
        files: paths below the package: `TRAINING`, `DECODING` or `SAMPLING`.
    """
    for file in files:
        try:
            source = read_source(PACKAGE / file)
        except Exception as error:
            # An edit is under way: the file is no Python yet, or no text.
            return f"gpt/{file} raises {type(error).__name__}"
        if source.hash != recorded().get(file):
            return f"gpt/{file} was edited"
        module = "gpt." + file.removesuffix(".py").replace("/", ".")
        change = change_in_memory(source, module)
        if change is not None:
            return f"{change.name} of gpt/{file} {change.what}"
    return changed_torch()


def current() -> dict[str, str]:
    """Return the hash of each file on disk that some kernels stand for."""
    files = sorted({*TRAINING, *DECODING, *SAMPLING})
    return {file: read_source(PACKAGE / file).hash for file in files}


@cache
def recorded() -> dict[str, str]:
    """Return the hashes of the files with which the kernels were compared."""
    return dict(json.loads(FINGERPRINT.read_text(encoding="utf-8")))
