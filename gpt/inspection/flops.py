"""Floating point operations of a model, counted from its configuration: a multiply-add is two."""

from gpt.config import ModelConfig


def matmul_parameters(config: ModelConfig) -> int:
    """Weights that multiply every token: all linear layers and the head; no embeddings, norms or biases."""
    assert config.vocab_size is not None
    attention = config.n_embd * (2 * config.n_embd + 2 * config.kv_heads * config.head_width)
    mlp = config.n_embd * config.mlp_hidden * (3 if config.mlp == "swiglu" else 2)
    return config.n_layer * (attention + mlp) + config.n_embd * config.vocab_size


def forward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Matrix-product FLOPs of one forward pass over (batch, length) tokens.

    Attention counts the whole (T, T) square, masked half included, as torch's counter and the
    PaLM convention do (Chowdhery et al. 2022, 2204.02311, appendix B).
    """
    per_token = 2 * matmul_parameters(config)
    attention = config.n_layer * 2 * 2 * length * length * config.n_embd  # scores, weighted sum
    return batch * (length * per_token + attention)


def training_flops(config: ModelConfig, batch: int, length: int) -> int:
    """FLOPs of a forward and a backward pass: the backward is two forwards."""
    return 3 * forward_flops(config, batch, length)
