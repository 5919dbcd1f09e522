"""Models of every choice of the architecture: few ones, such that any two choices meet in one of
them.
"""

from random import Random
from typing import Any

from gpt.model import GPT
from tiny import sharp_model

CHOICES = ("position", "norm", "mlp", "n_kv_head", "tie_weights", "bias", "qk_norm", "attention")
VARIANTS = [
    ("learned", "layernorm", "gelu", 4, True, True, False, "reference"),
    ("learned", "rmsnorm", "gelu_tanh", 2, False, True, False, "reference"),
    ("learned", "layernorm", "relu", 1, False, False, False, "auto"),
    ("learned", "layernorm", "relu2", 2, True, False, True, "reference"),
    ("learned", "layernorm", "swiglu", 4, False, False, False, "sdpa"),
    ("sinusoidal", "rmsnorm", "gelu", 2, True, False, False, "auto"),
    ("sinusoidal", "layernorm", "gelu_tanh", 1, False, True, True, "auto"),
    ("sinusoidal", "rmsnorm", "relu", 4, True, True, False, "sdpa"),
    ("sinusoidal", "rmsnorm", "relu2", 4, False, False, True, "auto"),
    ("sinusoidal", "layernorm", "swiglu", 4, True, True, True, "reference"),
    ("sinusoidal", "rmsnorm", "swiglu", 2, False, False, False, "sdpa"),
    ("rope", "layernorm", "gelu", 1, False, False, True, "sdpa"),
    ("rope", "layernorm", "gelu_tanh", 4, True, False, False, "sdpa"),
    ("rope", "layernorm", "relu", 2, True, False, True, "reference"),
    ("rope", "rmsnorm", "relu2", 2, False, True, False, "sdpa"),
    ("rope", "rmsnorm", "relu2", 1, True, True, False, "reference"),
    ("rope", "rmsnorm", "swiglu", 1, True, True, False, "auto"),
]
"""Values of `CHOICES` that the native kernels know. A test of the model checks that every pair of
values is in one of the variants.
"""
PYTORCH_VARIANTS: list[tuple[Any, ...]] = []
"""The same for values that only PyTorch computes, of which each has to be in one variant."""


def keys_of(variant: tuple[Any, ...]) -> dict[str, Any]:
    """Return the keys of `model` by name."""
    return dict(zip(CHOICES, variant, strict=True))


def name_of(variant: tuple[Any, ...]) -> str:
    """Return the name of a variant in the name of a test."""
    return "-".join(map(str, variant))


def draw_model(generator: Random, **fixed: Any) -> GPT:
    """Return a model in eval mode with random sizes, a random choice of everything, and weights
    that matter.

    Args:
        generator: decides.
        fixed: keys of `model` that are not chosen at random.
    """
    keys: dict[str, Any] = {}
    for name, values in zip(CHOICES, zip(*VARIANTS, strict=True), strict=True):
        keys[name] = generator.choice(values)
    heads = generator.choice((1, 2, 3, 4, 6))
    keys |= {
        "n_layer": generator.randint(1, 3),
        "n_head": heads,
        "n_kv_head": generator.choice([count for count in (1, 2, 3, 4, 6) if heads % count == 0]),
        "n_embd": heads * generator.choice((2, 6, 8, 16)),
        "block_size": generator.choice((5, 16, 24, 70)),
        "vocab_size": generator.choice((3, 23, 65, 130)),
        "mlp_width": generator.choice((None, None, 20, 67)),
        "norm_eps": generator.choice((1e-5, 0.1)),
        "rope_theta": generator.choice((100.0, 10000.0)),
    }
    return sharp_model(
        generator.choice((0.2, 0.3, 0.5)), generator.randrange(2**31), **(keys | fixed)
    )
