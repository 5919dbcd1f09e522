"""Count the parameters of a model from its modules: no formula here knows the architecture."""

from dataclasses import dataclass

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.system.device import meta_device

PROJECTIONS = {"c_q": "queries", "c_k": "keys", "c_v": "values", "c_proj": "projection"}
"""The linear layers of attention, and the last word of the component that each belongs to."""

COMPONENTS = (
    "token embedding",
    "added positions",
    "attention, queries",
    "attention, keys",
    "attention, values",
    "attention, projection",
    "attention, biases",
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
"""Components outside the blocks, by the first part of their parameters' names."""


@dataclass(frozen=True)
class NamedTensor:
    """One parameter tensor; a tied one comes once, by its first name."""

    name: str
    shape: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Component:
    """The parameters of one component of a model, in all blocks together."""

    name: str  # one of `COMPONENTS`
    per_block: int | None  # parameters in one block; None outside the blocks
    count: int  # parameters in all
    share: float  # percentage of the whole model


@dataclass(frozen=True)
class ParameterCount:
    """The parameters of a model."""

    total: int  # trainable parameters, a tied matrix counted once
    components: tuple[Component, ...]
    tensors: tuple[NamedTensor, ...]
    tied: bool  # whether the head is the token embedding, and therefore counts 0
    buffers: int  # numbers in tables that are not trained (rotary and sinusoidal positions)

    @property
    def in_blocks(self) -> int:
        """Return the parameters of all blocks together."""
        return sum(part.count for part in self.components if part.per_block is not None)


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of the model that a configuration builds."""
    with meta_device():  # shapes are enough: the largest model takes no memory
        model = GPT(config)
    counts = dict.fromkeys(COMPONENTS, 0)
    tensors = []
    for name, parameter in model.named_parameters():
        counts[_component_of(name)] += parameter.numel()
        tensors.append(NamedTensor(name, tuple(parameter.shape), parameter.numel()))

    total = sum(counts.values())
    components = []
    for component, count in counts.items():
        per_block = None
        if component not in OUTSIDE.values():
            per_block = count // config.n_layer  # all blocks have the same shapes
        components.append(Component(component, per_block, count, share=100 * count / total))
    return ParameterCount(
        total=total,
        components=tuple(components),
        tensors=tuple(tensors),
        tied=model.lm_head.weight is model.wte.weight,
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def _component_of(name: str) -> str:
    """Return the component of a parameter by its name, such as `h.3.attn.c_q.weight`."""
    path = name.split(".")
    if path[0] != "h":
        return OUTSIDE[path[0]]
    sublayer = path[2]  # after `h` and the number of the block
    inside = path[3]  # a module inside the sublayer, or a parameter of its own
    is_bias = path[-1] == "bias"
    if sublayer in ("ln_1", "ln_2") or inside in ("q_norm", "k_norm"):
        return "norms of the blocks"
    if sublayer == "attn":
        return "attention, biases" if is_bias else f"attention, {PROJECTIONS[inside]}"
    return "feed-forward, biases" if is_bias else "feed-forward, weights"
