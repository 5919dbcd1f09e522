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

# For type checkers and editors, which do not run `__getattr__`; `as` makes a name public for them.
if TYPE_CHECKING:
    from gpt.api.models import load as load
    from gpt.api.models import save as save
    from gpt.api.plotting import plot as plot
    from gpt.api.run import Run as Run
    from gpt.api.training import train as train
    from gpt.config import Config as Config
    from gpt.config import ModelConfig as ModelConfig
    from gpt.config import SamplingParams as SamplingParams
    from gpt.config.plugins import load_plugins as load_plugins
    from gpt.config.sources import load_config as load_config
    from gpt.data import ByteTokenizer as ByteTokenizer
    from gpt.data import CharTokenizer as CharTokenizer
    from gpt.extras.inspection import show as show
    from gpt.extras.inspection.tracing import edits as edits
    from gpt.extras.inspection.tracing.activation_cache import ActivationCache as ActivationCache
    from gpt.extras.inspection.tracing.activation_cache import run_with_cache as run_with_cache
    from gpt.extras.inspection.tracing.shape_trace import trace_shapes as trace_shapes
    from gpt.extras.inspection.views.attention import attention_patterns as attention_patterns
    from gpt.extras.inspection.views.lens import logit_lens as logit_lens
    from gpt.extras.inspection.views.surprisal import surprisal as surprisal
    from gpt.generation.generator import generate as generate
    from gpt.generation.generator import generate_tokens as generate_tokens
    from gpt.generation.generator import stream as stream
    from gpt.generation.runtime import build_runtime as build_runtime
    from gpt.model import GPT as GPT
    from gpt.model.quantized import quantize as quantize
    from gpt.system.errors import GPTError as GPTError
    from gpt.training.callbacks import Callback as Callback

__version__ = "0.1.0"

_NAMES = {
    "gpt.api.models": "load save",
    "gpt.api.plotting": "plot",
    "gpt.api.run": "Run",
    "gpt.api.training": "train",
    "gpt.config": "Config ModelConfig SamplingParams",
    "gpt.config.sources": "load_config",
    "gpt.data": "ByteTokenizer CharTokenizer",
    "gpt.system.errors": "GPTError",
    "gpt.generation.generator": "generate generate_tokens stream",
    "gpt.generation.runtime": "build_runtime",
    "gpt.extras.inspection": "show",
    "gpt.extras.inspection.tracing": "edits",
    "gpt.extras.inspection.tracing.activation_cache": "ActivationCache run_with_cache",
    "gpt.extras.inspection.tracing.shape_trace": "trace_shapes",
    "gpt.extras.inspection.views.attention": "attention_patterns",
    "gpt.extras.inspection.views.lens": "logit_lens",
    "gpt.extras.inspection.views.surprisal": "surprisal",
    "gpt.model": "GPT",
    "gpt.model.quantized": "quantize",
    "gpt.config.plugins": "load_plugins",
    "gpt.training.callbacks": "Callback",
}
_MODULE_OF: dict[str, str] = {}
for _module, _names in _NAMES.items():
    _MODULE_OF.update(dict.fromkeys(_names.split(), _module))
__all__ = sorted(_MODULE_OF)


# Type checkers must not see this function, by which every name would exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'gpt' has no attribute {name!r}")
        module = import_module(_MODULE_OF[name])
        if hasattr(module, name):
            return getattr(module, name)
        # `edits` is a module of its package, which has not imported it yet.
        return import_module(f"{_MODULE_OF[name]}.{name}")


def __dir__() -> list[str]:
    return __all__


# In a notebook, models and results are shown as pictures and tables.
if "IPython" in sys.modules:
    import_module("gpt.extras.inspection.notebook").register()
