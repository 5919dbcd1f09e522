"""The names of activations, as TransformerLens has them, with their axes.

Axes: B batch, T query positions, S key positions, C n_embd, H query heads, K key and value heads,
D head_dim, F hidden width of the feed-forward network, V vocabulary.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from gpt.config import ModelConfig
from gpt.config.suggestions import nearest
from gpt.model.layers import MLP, SwiGLU, build_mlp
from gpt.model.positions import AddedPositions, RotatedPositions, build_position
from gpt.system.device import meta_device
from gpt.system.errors import InputError

_BLOCK = re.compile(r"blocks\.(-?\d+)\.")
"""The beginning of the name of an activation inside a block, with the number of its layer."""
Key = str | tuple[str, int]
"""A full name, or a short one with a layer, such as `("pattern", 0)`.

Layers below 0 count from the last.
"""


class NoSuchActivation(InputError, KeyError):
    """A name stands for no activation, for several, or for one that was not captured."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show the message in quotation marks


@dataclass(frozen=True)
class Activation:
    """One named tensor of a forward pass."""

    axes: str  # a letter per dimension
    about: str  # description for the reader

    @property
    def head_axis(self) -> int | None:
        """Return the number of the axis of heads, or None if there is none."""
        for number, axis in enumerate(self.axes.split()):
            if axis in "HK":
                return number
        return None

    def shape(self, config: ModelConfig, batch: int, length: int) -> tuple[int, ...]:
        """Return the shape in a pass over (batch, length) tokens without a cache."""
        assert config.vocab_size is not None
        sizes = {
            "B": batch,
            "T": length,
            "S": length,
            "C": config.n_embd,
            "H": config.n_head,
            "K": config.kv_heads,
            "D": config.head_dim,
            "F": config.mlp_hidden,
            "V": config.vocab_size,
        }
        return tuple(sizes[axis] for axis in self.axes.split())


EMBEDDING = {
    "hook_embed": Activation("B T C", "token embeddings"),
    "hook_pos_embed": Activation("B T C", "position vectors, added to the embeddings"),
}
BLOCK = {
    "hook_resid_pre": Activation("B T C", "residual stream, into the block"),
    "ln1.hook_normalized": Activation("B T C", "output of ln_1, gain and bias included"),
    "attn.hook_q": Activation("B T H D", "queries, as projected"),
    "attn.hook_k": Activation("B T K D", "keys, as projected"),
    "attn.hook_v": Activation("B T K D", "values"),
    "attn.hook_rot_q": Activation(
        "B T H D", "queries as they are scored: normalized, rotated by their position"
    ),
    "attn.hook_rot_k": Activation(
        "B T K D", "keys as they are scored: normalized, rotated by their position"
    ),
    "attn.hook_attn_scores": Activation(
        "B H T S", "scores of keys, -inf where the query may not attend"
    ),
    "attn.hook_pattern": Activation(
        "B H T S", "attention weights: [b, h, i, j] from query i to key j"
    ),
    "attn.hook_z": Activation("B T H D", "weighted sums of values"),
    "hook_attn_out": Activation("B T C", "output of attention, added to the stream"),
    "ln2.hook_normalized": Activation("B T C", "output of ln_2, gain and bias included"),
    "mlp.hook_pre": Activation("B T F", "hidden units before the activation function"),
    "mlp.hook_pre_linear": Activation("B T F", "what the gate multiplies"),
    "mlp.hook_post": Activation("B T F", "hidden units"),
    "hook_mlp_out": Activation("B T C", "output of the feed-forward network, added to the stream"),
    "hook_resid_post": Activation("B T C", "residual stream, out of the block"),
}
HEAD = {
    "ln_final.hook_normalized": Activation("B T C", "output of ln_f, gain and bias included"),
    "logits": Activation("B T V", "scores of the next token, float32"),
}


def activations(config: ModelConfig) -> dict[str, Activation]:
    """Return every activation of a model by its full name, in the order of computation."""
    absent = _absent_names(config)
    table = {}
    for name, activation in EMBEDDING.items():
        if name not in absent:
            table[name] = activation
    for layer in range(config.n_layer):
        for name, activation in BLOCK.items():
            if name not in absent:
                table[f"blocks.{layer}.{name}"] = activation
    return {**table, **HEAD}


def _absent_names(config: ModelConfig) -> set[str]:
    """Return the names in `EMBEDDING` and `BLOCK` that a model has no activation of."""
    with meta_device():  # the classes of the modules tell it, their memory is not needed
        position = build_position(config)
        mlp = build_mlp(config)
    absent = set()
    if not isinstance(position, AddedPositions):
        absent.add("hook_pos_embed")
    if not isinstance(position, RotatedPositions) and not config.qk_norm:
        # Queries and keys are scored as they were projected.
        absent |= {"attn.hook_rot_q", "attn.hook_rot_k"}
    if not isinstance(mlp, SwiGLU):
        absent.add("mlp.hook_pre_linear")
    if not isinstance(mlp, SwiGLU | MLP):
        # What a plugin's network computes inside is not known, only its output is.
        absent |= {"mlp.hook_pre", "mlp.hook_post"}
    return absent


def select(table: Mapping[str, Activation], names: str | Iterable[str] | None) -> list[str]:
    """Return the names in `table` that full names or patterns stand for, in its order.

    Args:
        names: None: all.
    """
    if names is None:
        return list(table)
    if isinstance(names, str):
        names = [names]
    chosen: set[str] = set()
    for name in names:
        matches = [known for known in table if fnmatchcase(known, name)]
        if not matches:
            raise NoSuchActivation(f"unknown activation {name}{_hint(name, table)}")
        chosen.update(matches)
    return [name for name in table if name in chosen]


def _hint(name: str, table: Mapping[str, Activation]) -> str:
    """Return the end of a message about an unknown name.

    It says how many layers there are if the layer is wrong, or else the nearest name.
    """
    n_layer = len([known for known in table if known.endswith(".hook_resid_post")])
    block = _BLOCK.match(name)
    layers = [str(layer) for layer in range(n_layer)]
    if block is not None and block[1] not in layers:
        return f"; the model has {layers_of(n_layer)}"
    return nearest(name, table)


def layers_of(n_layer: int) -> str:
    """Return the number of layers in words, with the numbers of the first and the last."""
    return "1 layer, number 0" if n_layer == 1 else f"{n_layer} layers, 0 to {n_layer - 1}"


def expand(key: Key, n_layer: int) -> str:
    """Return the full name that a key stands for.

    Raises:
        NoSuchActivation: a short name stands for no activation or several, or there is no such
            layer.
    """
    if isinstance(key, str):
        return key
    short_name, layer = key
    matches = [name for name in BLOCK if name.endswith(f"hook_{short_name}")]
    if len(matches) != 1:
        raise NoSuchActivation(f"{key!r} means {len(matches)} activations; give the full name")
    if not -n_layer <= layer < n_layer:
        raise NoSuchActivation(f"there is no layer {layer}; the model has {layers_of(n_layer)}")
    if layer < 0:
        layer += n_layer
    return f"blocks.{layer}.{matches[0]}"


def capture_bytes(
    config: ModelConfig, names: Iterable[str], batch: int, length: int, itemsize: int
) -> int:
    """Return the bytes that activations take, before anything is computed.

    Args:
        itemsize: bytes of a number of the weights, in whose type everything but the logits is
            computed.
    """
    table = activations(config)
    total = 0
    for name in names:
        count = math.prod(table[name].shape(config, batch, length))
        bytes_of_each = torch.float32.itemsize if name == "logits" else itemsize
        total += count * bytes_of_each
    return total
