"""Count the FLOPs of a model from its configuration; a multiply-add counts as two."""

from gpt.config import Config, ModelConfig
from gpt.config.sections import SHIPPED


def matmul_parameters(config: ModelConfig) -> int:
    """Count the weights that multiply every token: linear layers and head; no embeddings, norms or biases."""
    assert config.vocab_size is not None
    attention = config.n_embd * (2 * config.n_embd + 2 * config.kv_heads * config.head_dim)
    return config.n_layer * (attention + _mlp_matrices(config)) + config.n_embd * config.vocab_size


def _mlp_matrices(config: ModelConfig) -> int:
    plain = config.n_embd * config.mlp_hidden * (3 if config.mlp == "swiglu" else 2)
    if config.mlp in SHIPPED["model.mlp"]:
        return plain
    from gpt.model.layers import MLPS, build_mlp
    from gpt.system.device import meta_device

    if config.mlp not in MLPS:
        return plain

    with meta_device():
        return sum(weight.numel() for weight in build_mlp(config).parameters() if weight.dim() == 2)


def flops_by_part(config: ModelConfig, batch: int, new: int, keys: int) -> dict[str, int]:
    """Count the matmul FLOPs of (batch, new) tokens that attend to `keys` positions, their own included.

    The parts are `linear_layers`, `attention` and `head`.

    Attention counts every query against every key, masked ones included, as torch's counter and the PaLM convention do
    (Chowdhery et al. 2022, 2204.02311, appendix B). Norms and activations are no matmuls, and not counted. The head is
    applied at every new position, in a prefill too, as `GPT.forward` does.
    """
    assert config.vocab_size is not None
    head = config.n_embd * config.vocab_size
    return {
        "linear_layers": 2 * batch * new * (matmul_parameters(config) - head),
        "attention": 2
        * 2
        * batch
        * new
        * keys
        * config.n_embd
        * config.n_layer,  # scores, weighted sum
        "head": 2 * batch * new * head,
    }


def forward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Count the FLOPs of one forward pass over (batch, length) tokens, or of a prefill of an empty cache."""
    return sum(flops_by_part(config, batch, length, length).values())


def training_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Count those of a forward and a backward pass; in the latter each matmul has two, for its factors' gradients."""
    return 3 * forward_flops(config, batch, length)


def run_flops(config: Config) -> int:
    """Count the FLOPs of the steps of a training; evaluations, samples and a teacher's predictions are not counted."""
    model, tokens = config.model, config.train.sequences * config.model.block_size
    return sum(
        steps * training_flops(model, tokens // length, length)
        for length, steps in config.sequence_lengths()
    )
