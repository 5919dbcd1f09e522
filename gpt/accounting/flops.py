"""Count the FLOPs of a model from its configuration; a multiply-add counts as two."""

from dataclasses import dataclass

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
    from gpt.model.meta import meta_device

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
        "attention": 2 * 2 * batch * new * keys * config.n_embd * config.n_layer,  # scores, weighted sum
        "head": 2 * batch * new * head,
    }


def forward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Count the FLOPs of one forward pass over (batch, length) tokens, or of a prefill of an empty cache."""
    return sum(flops_by_part(config, batch, length, length).values())


def decode_flops(config: ModelConfig, batch: int, keys: int) -> int:
    """Count the FLOPs of one new token in each sequence, with a cache; `keys` positions, the new one included."""
    return sum(flops_by_part(config, batch, 1, keys).values())


def backward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Each matmul has two in the backward pass, for the gradients of its two factors."""
    return 2 * forward_flops(config, batch, length)


def training_flops(config: ModelConfig, batch: int, length: int) -> int:
    return forward_flops(config, batch, length) + backward_flops(config, batch, length)


def run_flops(config: Config) -> int:
    """Count the FLOPs of the steps of a training; evaluations, samples and a teacher's predictions are not counted."""
    model, tokens = config.model, config.train.sequences * config.model.block_size
    return sum(steps * training_flops(model, tokens // length, length) for length, steps in config.sequence_lengths())


@dataclass(frozen=True)
class GenerationFlops:
    """The FLOPs of `new` tokens after `prompt` tokens, with and without a cache, at batch size 1.

    Step i, counted from 1, reads prompt + i tokens: without a cache all of them go through the model, with one
    only the newest. The count thus begins where the first new token is fed back, which is the first pass
    that a cache makes cheap, and ends with the last one fed back: prompt + `new` positions with a cache. A
    generator that stops at `new` tokens makes the pass of the prompt, from which the first comes, and does
    not feed the last one back: prompt + `new` - 1 positions.
    """

    config: ModelConfig
    prompt: int
    new: int

    def naive_step(self, step: int) -> int:
        return forward_flops(self.config, 1, self.prompt + step)

    def cached_step(self, step: int) -> int:
        return decode_flops(self.config, 1, self.prompt + step)

    @property
    def prefill(self) -> int:
        return forward_flops(self.config, 1, self.prompt)

    @property
    def naive(self) -> int:
        """Cubic in `new`: a pass over L tokens takes a L + b L^2 FLOPs, and L grows by one in each step."""
        a, b = 2 * matmul_parameters(self.config), 4 * self.config.n_embd * self.config.n_layer
        squares = _sum_of_squares(self.prompt + self.new) - _sum_of_squares(self.prompt)
        return a * self.naive_positions + b * squares

    @property
    def cached(self) -> int:
        """Quadratic in `new`; the prefill is included."""
        a, b = 2 * matmul_parameters(self.config), 4 * self.config.n_embd * self.config.n_layer
        return self.prefill + a * self.new + b * self.naive_positions

    @property
    def naive_positions(self) -> int:
        return self.new * self.prompt + self.new * (self.new + 1) // 2

    @property
    def cached_positions(self) -> int:
        return self.prompt + self.new


def _sum_of_squares(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6
