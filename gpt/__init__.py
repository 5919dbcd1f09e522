"""A text file and a YAML file in, a trained character-level GPT out.

    model, tokenizer = gpt.load("runs/quickstart")
    for piece in gpt.stream(model, tokenizer, "The ", temperature=0.8):
        print(piece, end="")

Names are imported when they are first used, so that a command line that needs no tensors, such as
`--help`, does not wait for torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.api.models import load
    from gpt.api.run import Run
    from gpt.api.training import train
    from gpt.config import Config, ModelConfig, SamplingParams, load_config
    from gpt.data import ByteTokenizer, CharTokenizer
    from gpt.errors import GPTError
    from gpt.generation import generate, generate_tokens, stream
    from gpt.inspection import show
    from gpt.inspection.tracing import edits
    from gpt.inspection.tracing.activation_cache import ActivationCache, run_with_cache
    from gpt.inspection.tracing.shape_trace import trace_shapes
    from gpt.inspection.views.attention import attention_patterns
    from gpt.inspection.views.lens import logit_lens
    from gpt.inspection.views.surprisal import surprisal
    from gpt.model import GPT
    from gpt.model.quantized import quantize

_NAMES = {
    "gpt.api.models": ("load",),
    "gpt.api.run": ("Run",),
    "gpt.api.training": ("train",),
    "gpt.config": ("Config", "ModelConfig", "SamplingParams", "load_config"),
    "gpt.data": ("ByteTokenizer", "CharTokenizer"),
    "gpt.errors": ("GPTError",),
    "gpt.generation": ("generate", "generate_tokens", "stream"),
    "gpt.inspection.tracing.activation_cache": ("ActivationCache", "run_with_cache"),
    "gpt.inspection.tracing.shape_trace": ("trace_shapes",),
    "gpt.inspection.views.attention": ("attention_patterns",),
    "gpt.inspection.views.lens": ("logit_lens",),
    "gpt.inspection.views.surprisal": ("surprisal",),
    "gpt.model": ("GPT",),
    "gpt.model.quantized": ("quantize",),
}
_MODULES = {"edits": "gpt.inspection.tracing.edits", "show": "gpt.inspection.show"}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "GPT",
    "ActivationCache",
    "ByteTokenizer",
    "CharTokenizer",
    "Config",
    "GPTError",
    "ModelConfig",
    "Run",
    "SamplingParams",
    "attention_patterns",
    "edits",
    "generate",
    "generate_tokens",
    "load",
    "load_config",
    "logit_lens",
    "quantize",
    "run_with_cache",
    "show",
    "stream",
    "surprisal",
    "trace_shapes",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gpt' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if "IPython" in sys.modules:
    import_module("gpt.inspection.notebook").register()
