"""Count the FLOPs of a model from its configuration; a multiply-add counts as two."""

from gpt.config import Config, ModelConfig
from gpt.config.components import SHIPPED


def matmul_parameters(config: ModelConfig) -> int:
    """Count the weights that multiply every token: those of linear layers and of the head.

    Embeddings are looked up, not multiplied, and norms and biases are not matrices.
    """
    assert config.vocab_size is not None
    # Queries and the output projection have width C; keys and values may have fewer heads.
    attention = config.n_embd * (2 * config.n_embd + 2 * config.kv_heads * config.head_dim)
    return config.n_layer * (attention + _mlp_matrices(config)) + config.n_embd * config.vocab_size


def _mlp_matrices(config: ModelConfig) -> int:
    """Count the weights in the matrices of one feed-forward network."""
    # SwiGLU has a third matrix, the gate.
    plain = config.n_embd * config.mlp_hidden * (3 if config.mlp == "swiglu" else 2)
    if config.mlp in SHIPPED["model.mlp"]:
        return plain
    # These are imported here, since only a plugin's MLP needs torch, which takes seconds to import.
    from gpt.model.layers import MLPS, build_mlp
    from gpt.system.device import meta_device

    if config.mlp not in MLPS:
        return plain  # a plugin's activation, which has no matrices, in the plain network

    # The plugin's MLP is built on the meta device, without memory, to count its matrices.
    with meta_device():
        return sum(weight.numel() for weight in build_mlp(config).parameters() if weight.dim() == 2)


def flops_by_part(config: ModelConfig, batch: int, new: int, keys: int) -> dict[str, int]:
    """Count the matmul FLOPs of (batch, new) tokens that attend to `keys` positions.

    The parts are `linear_layers`, `attention` and `head`. The keys include those of the new tokens
    themselves.

    Attention counts every query against every key, masked ones included, as torch's counter and
    the PaLM convention do (Chowdhery et al. 2022, 2204.02311, appendix B). Norms and activations
    are no matmuls, and are not counted. The head is applied at every new position, in a prefill
    too, as `GPT.forward` does.
    """
    assert config.vocab_size is not None
    head = config.n_embd * config.vocab_size
    # In each part, the first 2 counts a multiplication and an addition. Attention has two matmuls,
    # the scores and the weighted sum.
    return {
        "linear_layers": 2 * batch * new * (matmul_parameters(config) - head),
        "attention": 2 * 2 * batch * new * keys * config.n_embd * config.n_layer,
        "head": 2 * batch * new * head,
    }


def forward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Count the FLOPs of one forward pass over (batch, length) tokens.

    A prefill of an empty cache takes the same number.
    """
    return sum(flops_by_part(config, batch, length, length).values())


def training_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Count the FLOPs of a forward and a backward pass over (batch, length) tokens.

    In the backward pass each matmul becomes two, one for the gradient of each factor.
    """
    return 3 * forward_flops(config, batch, length)


def run_flops(config: Config) -> int:
    """Count the FLOPs of all steps of a training run.

    Evaluations, samples and the predictions of a teacher are not counted.
    """
    tokens = config.train.sequences * config.model.block_size  # of an optimizer step
    total = 0
    for length, steps in config.sequence_lengths():
        # Shorter sequences are pieces of the same windows, so that there are more of them.
        total += steps * training_flops(config.model, tokens // length, length)
    return total
