"""Architectures of published models, as configurations: to count, not to run."""

from gpt.config import ModelConfig
from gpt.system.errors import ConfigError


def _gpt2(n_layer: int, n_head: int, n_embd: int) -> ModelConfig:
    """Return a configuration of GPT-2 (Radford et al. 2019), whose sizes differ in these only."""
    return ModelConfig(
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        block_size=1024,
        vocab_size=50257,
        dropout=0.1,
        bias=True,
        mlp="gelu_tanh",
    )


PUBLISHED: dict[str, ModelConfig] = {
    "gpt2": _gpt2(12, 12, 768),
    "gpt2-medium": _gpt2(24, 16, 1024),
    "gpt2-large": _gpt2(36, 20, 1280),
    "gpt2-xl": _gpt2(48, 25, 1600),
    "llama-2-7b": ModelConfig(  # Touvron et al. 2023, 2307.09288
        n_layer=32,
        n_head=32,
        n_embd=4096,
        block_size=4096,
        vocab_size=32000,
        norm="rmsnorm",
        position="rope",
        mlp="swiglu",
        mlp_width=11008,
        tie_weights=False,
    ),
    "llama-3-8b": ModelConfig(  # Grattafiori et al. 2024, 2407.21783, table 3
        n_layer=32,
        n_head=32,
        n_kv_head=8,
        n_embd=4096,
        block_size=8192,
        vocab_size=128256,
        norm="rmsnorm",
        position="rope",
        rope_theta=500000.0,
        mlp="swiglu",
        mlp_width=14336,
        tie_weights=False,
    ),
}
"""Architectures, by the names that their authors gave them."""


def find_published(name: str) -> ModelConfig:
    """Return a published configuration; raise ConfigError for an unknown name."""
    if name not in PUBLISHED:
        raise ConfigError(f"no published configuration {name!r}; there are {', '.join(PUBLISHED)}")
    return PUBLISHED[name]
