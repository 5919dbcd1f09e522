"""The names of activations, as TransformerLens has them, with their axes.

Axes: B batch, T query positions, S key positions, C n_embd, H query heads, K key and value heads,
D head_dim, F hidden width of the feed-forward network, V vocabulary.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpt.config import ModelConfig
from gpt.errors import InputError
from gpt.model.layers import MLP, SwiGLU, build_mlp
from gpt.model.meta import meta_device
from gpt.model.positions import AddedPositions, RotatedPositions, build_position

Key = str | tuple[str, int] | tuple[str, int, str]
"""A full name, or a short one: `("pattern", 0)`, `("normalized", 0, "ln1")`."""


class NoSuchActivation(InputError, KeyError):
    """A name stands for no activation, for several, or for one that was not captured."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it in quotation marks


@dataclass(frozen=True)
class Activation:
    """One named tensor of a forward pass."""

    axes: str  # a letter per dimension, or 1
    about: str  # description for the reader

    @property
    def head_axis(self) -> int | None:
        """Return the dimension of the heads, or None."""
        return next((i for i, axis in enumerate(self.axes.split()) if axis in "HK"), None)

    def shape(self, config: ModelConfig, batch: int, length: int) -> tuple[int, ...]:
        """Return its shape for ids of shape (batch, length)."""
        assert config.vocab_size is not None
        sizes = {
            "1": 1,
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
    "ln1.hook_scale": Activation("B T 1", "divisor of ln_1"),
    "ln1.hook_normalized": Activation("B T C", "output of ln_1, gain and bias included"),
    "attn.hook_q": Activation("B T H D", "queries, as projected"),
    "attn.hook_k": Activation("B T K D", "keys, as projected"),
    "attn.hook_v": Activation("B T K D", "values"),
    "attn.hook_rot_q": Activation("B T H D", "queries as they are scored: normalized, rotated by their position"),
    "attn.hook_rot_k": Activation("B T K D", "keys as they are scored: normalized, rotated by their position"),
    "attn.hook_attn_scores": Activation("B H T S", "scores of keys, -inf where the query may not attend"),
    "attn.hook_pattern": Activation("B H T S", "attention weights: [b, h, i, j] from query i to key j"),
    "attn.hook_z": Activation("B T H D", "weighted sums of values"),
    "hook_attn_out": Activation("B T C", "output of attention, added to the stream"),
    "hook_resid_mid": Activation("B T C", "residual stream, after attention"),
    "ln2.hook_scale": Activation("B T 1", "divisor of ln_2"),
    "ln2.hook_normalized": Activation("B T C", "output of ln_2, gain and bias included"),
    "mlp.hook_pre": Activation("B T F", "hidden units before the activation function"),
    "mlp.hook_pre_linear": Activation("B T F", "what the gate multiplies"),
    "mlp.hook_post": Activation("B T F", "hidden units"),
    "hook_mlp_out": Activation("B T C", "output of the feed-forward network, added to the stream"),
    "hook_resid_post": Activation("B T C", "residual stream, out of the block"),
}
HEAD = {
    "ln_final.hook_scale": Activation("B T 1", "divisor of ln_f"),
    "ln_final.hook_normalized": Activation("B T C", "output of ln_f, gain and bias included"),
    "logits": Activation("B T V", "scores of the next token, float32"),
}
ALIASES = {
    "embed": "hook_embed",
    "pos_embed": "hook_pos_embed",
    "ln_final": "ln_final.hook_normalized",
    "hook_logits": "logits",
}
SHORT_ALIASES = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "query": "q",
    "key": "k",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_post": "post",
}
"""Alternative first parts of a short key, as in TransformerLens."""
READ_ONLY = ("hook_scale",)
"""Activations computed for the reader alone, since the model's own kernels do not expose them."""


def activations(config: ModelConfig) -> dict[str, Activation]:
    """Return every activation of a model by its full name, in the order of computation."""
    absent = set()
    with meta_device():
        position, mlp = build_position(config), build_mlp(config)
    if not isinstance(position, AddedPositions):
        absent.add("hook_pos_embed")
    if not isinstance(position, RotatedPositions) and not config.qk_norm:
        absent |= {"attn.hook_rot_q", "attn.hook_rot_k"}  # the same as hook_q and hook_k
    if not isinstance(mlp, SwiGLU):
        absent.add("mlp.hook_pre_linear")
    if not isinstance(mlp, SwiGLU | MLP):
        absent |= {"mlp.hook_pre", "mlp.hook_post"}  # of a plugin's network only the ends are known
    blocks = {
        f"blocks.{layer}.{name}": activation
        for layer in range(config.n_layer)
        for name, activation in BLOCK.items()
        if name not in absent
    }
    ends = {name: activation for name, activation in EMBEDDING.items() if name not in absent}
    return {**ends, **blocks, **HEAD}


def select(table: Mapping[str, Activation], names: str | Iterable[str] | None) -> list[str]:
    """Return the full names that some names stand for, in the order of computation.

    Args:
        table: result of `activations`.
        names: full names, aliases, or patterns such as `blocks.*.attn.hook_pattern`; None: all.

    Raises:
        NoSuchActivation: a name matches nothing.
    """
    if names is None:
        return list(table)
    chosen: set[str] = set()
    for name in [names] if isinstance(names, str) else names:
        wanted = ALIASES.get(name, name)
        matches = [known for known in table if known == wanted or fnmatchcase(known, wanted)]
        if not matches:
            raise NoSuchActivation(f"unknown activation {name}{_suggestion(name, table)}")
        chosen.update(matches)
    return [name for name in table if name in chosen]


def expand(key: Key, n_layer: int) -> str:
    """Return the full name that a key stands for, as in TransformerLens.

    `("pattern", 0)` is `blocks.0.attn.hook_pattern`. Layers below 0 count from the last. A third element
    names a part of the block: `("normalized", 0, "ln1")`.

    Raises:
        NoSuchActivation: the key has a wrong form, or stands for several activations.
    """
    if isinstance(key, str):
        return ALIASES.get(key, key)
    if not isinstance(key, tuple) or [type(part) for part in key] not in ([str, int], [str, int, str]):
        raise NoSuchActivation(f'{key!r} is not a key; a key is a name, or short, such as ("pattern", 0)')
    short, layer = SHORT_ALIASES.get(key[0], key[0]), key[1] + (n_layer if key[1] < 0 else 0)
    if len(key) == 3:
        return f"blocks.{layer}.{key[2]}.hook_{short.removeprefix('hook_')}"
    meant = [name for name in BLOCK if short in (name, name.rsplit(".", 1)[-1], name.rsplit("hook_", 1)[-1])]
    if len(meant) > 1:
        choices = " or ".join(repr((short, key[1], name.split(".")[0])) for name in meant)
        raise NoSuchActivation(f"{key!r} means {len(meant)} activations; write {choices}")
    return f"blocks.{layer}.{meant[0] if meant else short}"


def capture_bytes(config: ModelConfig, names: Iterable[str], batch: int, length: int, itemsize: int) -> int:
    """Return the bytes of these activations, before anything is computed; logits are always float32."""
    table = activations(config)
    return sum(
        math.prod(table[name].shape(config, batch, length)) * (4 if name == "logits" else itemsize) for name in names
    )


def _suggestion(name: str, table: Mapping[str, Activation]) -> str:
    close = difflib.get_close_matches(name, [*table, *ALIASES], n=1, cutoff=0.5)
    return (
        f"; did you mean {close[0]}?"
        if close
        else "; gpt.inspection.tracing.activation_names.activations(model.config) lists them"
    )
