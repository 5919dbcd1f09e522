"""Count the parameters of a model from its modules: no formula here knows the architecture."""

from collections import Counter
from dataclasses import dataclass

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.system.device import meta_device

PROJECTIONS = {"c_q": "queries", "c_k": "keys", "c_v": "values", "c_proj": "projection"}
"""Linear layers of attention, and the purpose of each."""

COMPONENTS = (
    "token embedding",
    "added positions",
    *(f"attention, {name}" for name in (*PROJECTIONS.values(), "biases")),
    "feed-forward, weights",
    "feed-forward, biases",
    "norms of the blocks",
    "final norm",
    "head",
)
"""Components of a model, in the order of the forward pass; every parameter belongs to one."""
OUTSIDE = {
    "wte": "token embedding",
    "wpe": "added positions",
    "rotation": "added positions",
    "score_bias": "added positions",
    "ln_f": "final norm",
    "lm_head": "head",
}
"""Components outside the blocks, by the first name of their parameters."""


@dataclass(frozen=True)
class NamedTensor:
    """One parameter tensor; a tied one comes once, by its first name."""

    name: str
    shape: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Component:
    name: str  # one of `COMPONENTS`
    per_block: int | None  # parameters in one block; None outside the blocks
    count: int  # parameters in all
    share: float  # percentage of the whole model


@dataclass(frozen=True)
class ParameterCount:
    total: int  # trainable parameters, a tied matrix counted once
    components: tuple[Component, ...]
    tensors: tuple[NamedTensor, ...]
    tied: bool  # whether the head is the token embedding, and therefore counts 0
    buffers: int  # numbers in tables that are not trained (rotary and sinusoidal positions)

    @property
    def in_blocks(self) -> int:
        return sum(part.count for part in self.components if part.per_block is not None)


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of a configuration, whose model is built on the meta device: shapes without memory."""
    with meta_device():
        model = GPT(config)
    parameters = dict(model.named_parameters())
    total = sum(parameter.numel() for parameter in parameters.values())
    counts: Counter[str] = Counter()
    for name, parameter in parameters.items():
        counts[_component_of(name)] += parameter.numel()
    assert set(counts) <= set(COMPONENTS)
    components = tuple(
        Component(
            name,
            counts[name] // config.n_layer
            if name.startswith(("attention", "feed-forward", "norms"))
            else None,
            counts[name],
            100 * counts[name] / total,
        )
        for name in COMPONENTS
    )
    tensors = tuple(NamedTensor(name, tuple(p.shape), p.numel()) for name, p in parameters.items())
    tied = model.lm_head.weight is model.wte.weight
    return ParameterCount(
        total, components, tensors, tied, sum(buffer.numel() for buffer in model.buffers())
    )


def _component_of(name: str) -> str:
    first, *rest = name.split(".")
    if first != "h":
        return OUTSIDE[first]
    _, sublayer, *inside, kind = rest  # 3.attn.c_q.weight
    if sublayer in ("ln_1", "ln_2") or inside[:1] in (["q_norm"], ["k_norm"]):
        return "norms of the blocks"
    if sublayer == "attn":
        return f"attention, {PROJECTIONS[inside[0]] if kind == 'weight' else 'biases'}"
    return f"feed-forward, {'biases' if kind == 'bias' else 'weights'}"
