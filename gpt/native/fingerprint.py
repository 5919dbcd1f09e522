"""Check that the Python code in use is the code whose results the kernels compute.

The kernels replace the code of some files of the package. `fingerprint.json` has a hash of each
file's syntax tree; `python -m gpt.native.trial` writes it after it has compared the results of the
kernels with those of the code. Kernels are used only if the files on disk have these hashes and the
modules in memory have what the files define: a notebook or a plugin may have replaced a function,
and a file may have been edited after it was imported.
"""

import json
from functools import cache
from pathlib import Path

from gpt.native.around_torch import changed_torch
from gpt.native.source_file import change_in_memory, read_source

PACKAGE = Path(__file__).parents[1]
FINGERPRINT = Path(__file__).parent / "fingerprint.json"

MODEL = ("model/gpt.py", "model/attention.py", "model/layers.py", "model/positions.py")
"""Files whose results all kernels compute."""
TRAINING = (
    *MODEL,
    "training/loss.py",
    "training/objective.py",
    "training/step.py",
    "training/muon.py",
)
"""Files whose results the training kernels compute."""
DECODING = (*MODEL, "model/quantized.py", "generation/runner.py")
"""Files whose results the decoder computes when it computes logits."""
SAMPLING = (
    "generation/sampling.py",
    "generation/tokens.py",
    "generation/runner.py",
    "config/filters.py",
)
"""Files whose results the decoder computes when it samples tokens."""


def changed_code(files: tuple[str, ...]) -> str | None:
    """Return the first change by which Python computes something else than the kernels, or None.

    A change is a clause for a message, such as "gpt/model/gpt.py was edited".

    Args:
        files: paths below the package: `TRAINING`, `DECODING` or `SAMPLING`.
    """
    for file in files:
        try:
            source = read_source(PACKAGE / file)
        except Exception as error:
            # While somebody edits the file, it may not be valid Python, or may be missing.
            return f"gpt/{file} raises {type(error).__name__}"
        if source.hash != recorded().get(file):
            return f"gpt/{file} was edited"
        module = "gpt." + file.removesuffix(".py").replace("/", ".")
        change = change_in_memory(source, module)
        if change is not None:
            return f"{change.name} of gpt/{file} {change.what}"
    # The files call functions of torch, which may have been replaced in memory too.
    return changed_torch()


def current() -> dict[str, str]:
    """Return the hash of each file on disk whose results some kernels compute."""
    files = sorted({*TRAINING, *DECODING, *SAMPLING})
    return {file: read_source(PACKAGE / file).hash for file in files}


@cache
def recorded() -> dict[str, str]:
    """Return the hashes that the files had when the kernels were compared with them."""
    return dict(json.loads(FINGERPRINT.read_text(encoding="utf-8")))
