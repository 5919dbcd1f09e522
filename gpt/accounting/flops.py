"""Floating point operations of a model, counted from its configuration: a multiply-add is two."""

from dataclasses import dataclass

from gpt.config import ModelConfig


def matmul_parameters(config: ModelConfig) -> int:
    """Weights that multiply every token: all linear layers and the head; no embeddings, norms or biases."""
    assert config.vocab_size is not None
    attention = config.n_embd * (2 * config.n_embd + 2 * config.kv_heads * config.head_dim)
    mlp = config.n_embd * config.mlp_hidden * (3 if config.mlp == "swiglu" else 2)
    return config.n_layer * (attention + mlp) + config.n_embd * config.vocab_size


def flops_by_part(config: ModelConfig, batch: int, new: int, keys: int) -> dict[str, int]:
    """Matrix-product FLOPs of (batch, new) tokens that attend to `keys` positions, their own included.

    The parts are `linear_layers`, `attention` and `head`.

    Attention counts every query against every key, masked ones included, as torch's counter and the
    PaLM convention do (Chowdhery et al. 2022, 2204.02311, appendix B). The head is applied at every
    new position, in a prefill too, as `GPT.forward` does.
    """
    assert config.vocab_size is not None
    head = config.n_embd * config.vocab_size
    return {
        "linear_layers": 2 * batch * new * (matmul_parameters(config) - head),
        "attention": 2 * 2 * batch * new * keys * config.n_embd * config.n_layer,  # scores, weighted sum
        "head": 2 * batch * new * head,
    }


def forward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Matrix-product FLOPs of one forward pass over (batch, length) tokens; also of a prefill of an empty cache."""
    return sum(flops_by_part(config, batch, length, length).values())


def decode_flops(config: ModelConfig, batch: int, keys: int) -> int:
    """FLOPs of one new token in each row, with a cache; `keys` positions in all, the new one included."""
    return sum(flops_by_part(config, batch, 1, keys).values())


def backward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """FLOPs of a backward pass: each product has two, for the gradients of its two factors."""
    return 2 * forward_flops(config, batch, length)


def training_flops(config: ModelConfig, batch: int, length: int) -> int:
    """FLOPs of a forward and a backward pass."""
    return forward_flops(config, batch, length) + backward_flops(config, batch, length)


@dataclass(frozen=True)
class GenerationStep:
    """The pass that reads a text of prompt + `step` tokens.

    Attributes:
        step: tokens after the prompt in the text that is read, from 1.
        naive: FLOPs where the whole text goes through the model.
        cached: FLOPs where its newest token does, and the others are in the cache.
    """

    step: int
    naive: int
    cached: int

    @property
    def ratio(self) -> float:
        """How many times the naive pass costs the cached one."""
        return self.naive / self.cached


@dataclass(frozen=True)
class GenerationFlops:
    """What `new` tokens after a prompt cost in both ways, batch 1.

    Attributes:
        prefill: FLOPs of the prompt's own pass, which only the cached way makes apart.
        steps: one for each new token.
        naive_positions: positions that go through the model, summed over the steps: prompt + i each.
        cached_positions: the prompt once, then one each.
    """

    prefill: int
    steps: tuple[GenerationStep, ...]
    naive_positions: int
    cached_positions: int

    @property
    def naive(self) -> int:
        """FLOPs without a cache."""
        return sum(step.naive for step in self.steps)

    @property
    def cached(self) -> int:
        """FLOPs with a cache, the prefill included."""
        return self.prefill + sum(step.cached for step in self.steps)


def generation_flops(config: ModelConfig, prompt: int, new: int) -> GenerationFlops:
    """Cost of `new` tokens after `prompt` tokens, with and without a cache.

    Step i reads a text of prompt + i tokens. The count thus begins where the first new token is fed
    back, which is the first pass that a cache makes cheap, and ends with the last one fed back: prompt +
    `new` positions with a cache. A generator that stops at `new` tokens makes the pass of the prompt, from
    which the first comes, and does not feed the last one back: prompt + `new` - 1 positions. The naive
    total is cubic in `new` through its attention, the cached one quadratic.
    """
    steps = tuple(
        GenerationStep(i, forward_flops(config, 1, prompt + i), decode_flops(config, 1, prompt + i))
        for i in range(1, new + 1)
    )
    naive_positions = new * prompt + new * (new + 1) // 2
    return GenerationFlops(forward_flops(config, 1, prompt), steps, naive_positions, prompt + new)
