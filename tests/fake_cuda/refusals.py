"""What CUDA refuses under `torch.use_deterministic_algorithms`, read from that function's documentation."""

import re
from collections.abc import Callable
from typing import Any

import torch

IRREGULAR = {"NLLLoss": "nll_loss2d", "CTCLoss": "ctc_loss", "interpolate": "upsample", "grid_sample": "grid_sampler"}
"""Names of operations that do not follow from the documentation's. Of NLLLoss it is `NLLLoss2d.cu` that raises."""
ONLY_IF: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], bool]] = {
    "cumsum": lambda func, args, options: (options.get("dtype") or args[0].dtype).is_floating_point,
    "bincount": lambda func, args, options: len(args) > 1 or "weights" in options,
    "median": lambda func, args, options: "dim" in func._overloadname,
    "scatter_reduce": lambda func, args, options: "prod" in args,
    "resize": lambda func, args, options: args[0].is_quantized,
}
"""Conditions in the documentation's words; without one, every call and its backward pass is refused."""


def refused_names() -> list[str]:
    """Stems of the operations' names."""
    documentation = torch.use_deterministic_algorithms.__doc__ or ""
    throws = documentation.partition("operations will throw")[2].partition("In addition")[0]
    names = re.findall(r"^ +\* :(?:class|func):`torch\.(?:\w+\.)*(\w+)`", throws, re.MULTILINE)
    snakes = [IRREGULAR.get(name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() for name in names]
    return sorted({name.strip("_") for name in snakes})


NAMES = refused_names()


def refuses(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether CUDA would raise RuntimeError for this call of an operation."""
    name = func.overloadpacket.__name__.strip("_")
    stem = next((stem for stem in NAMES if name == stem or name.startswith(f"{stem}_")), None)
    return stem is not None and ONLY_IF.get(stem, lambda *_: True)(func, args, options)
