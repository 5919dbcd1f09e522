"""How a model knows the position of a token: `POSITIONS`, by the name in `model.position`.

There are three ways: vectors added to the embedding (`AddedPositions`), rotated queries and keys
(`RotatedPositions`), and a bias on the scores of attention (`ScoreBias`). A model has one of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.system.errors import ConfigError

Rotation = tuple[Tensor, Tensor]
"""cos and sin of the rotation angles, each (T, D) or (B, 1, T, D)."""


class AddedPositions(nn.Module):
    """Adds vectors to the token embedding.

    `forward(x, positions)` maps x (B, T, C) to (B, T, C).
    """


class RotatedPositions(nn.Module):
    """Rotates queries and keys.

    `forward(positions)` returns the cos and sin of positions (T,) or (B, T).
    """


class ScoreBias(nn.Module):
    """Adds a bias to the scores of attention.

    `forward(queries, keys)` returns (H, T, S) for positions (T,) of the queries and (S,) of the
    keys. For positions (B, T) it returns (B, H, T, S), and the keys may then have positions (S,) or
    (B, S). A bias of -inf hides a key.
    """


class LearnedPositions(AddedPositions):
    """A trained vector per position, added to the token embedding (GPT-2)."""

    def __init__(self, block_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(block_size, width, dtype=torch.float32))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add the vectors of positions (T,) or (B, T) to x (B, T, C)."""
        return x + nn.functional.embedding(positions, self.weight)


class SinusoidalPositions(AddedPositions):
    """Fixed sines and cosines, added to the token embedding.

    See Vaswani et al. 2017, 1706.03762, section 3.5.
    """

    table: Tensor

    def __init__(self, block_size: int, width: int, theta: float) -> None:
        super().__init__()
        table = _fixed_table(
            (block_size, width), lambda: _sines_and_cosines(_angles(block_size, width, theta))
        )
        # The table is not saved, since it follows from the configuration.
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add the vectors of positions (T,) or (B, T) to x (B, T, C)."""
        return x + self.table[positions].to(x.dtype)


class Rotary(RotatedPositions):
    """Tables of the rotary position embedding (Su et al. 2021, 2104.09864).

    Column `i` pairs with column `i + D/2`, as in Llama. Both are rotated by the angle
    `position / theta^(2i/D)`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, block_size: int, head_dim: int, theta: float) -> None:
        super().__init__()
        shape = (block_size, head_dim)
        # Columns i and i + D/2 share an angle, so the table of D/2 angles is repeated.
        cos = _fixed_table(shape, lambda: _angles(block_size, head_dim, theta).repeat(1, 2).cos())
        sin = _fixed_table(shape, lambda: _angles(block_size, head_dim, theta).repeat(1, 2).sin())
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """Return cos and sin of the angles.

        Each is (T, D) for positions (T,), or (B, 1, T, D) for positions (B, T).
        """
        cos = self.cos[positions]
        sin = self.sin[positions]
        if positions.dim() == 2:  # one more dimension, for the heads
            return cos.unsqueeze(1), sin.unsqueeze(1)
        return cos, sin


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries (B, H, T, D), or keys (B, K, T, D), by their positions."""
    cos, sin = rotation
    return (x * cos + rotate_half(x) * sin).to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Return (-second half, first half) of the last dimension.

    This rotates x by a quarter turn in the plane of each pair of columns.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


POSITIONS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "learned": lambda config: LearnedPositions(config.block_size, config.n_embd),
    "sinusoidal": lambda config: SinusoidalPositions(
        config.block_size, config.n_embd, config.rope_theta
    ),
    "rope": lambda config: Rotary(config.block_size, config.head_dim, config.rope_theta),
}
"""Builders of position encodings, by the name in `model.position`."""


def build_position(config: ModelConfig) -> AddedPositions | RotatedPositions | ScoreBias:
    """Return the position encoding that `config.position` names.

    Raises:
        ConfigError: a plugin's encoding is derived from none of the three classes.
    """
    made = POSITIONS[config.position](config)
    if not isinstance(made, AddedPositions | RotatedPositions | ScoreBias):
        raise ConfigError(
            f"model.position: {config.position} is of {type(made).__name__}; expected a class "
            "derived from AddedPositions, RotatedPositions or ScoreBias"
        )
    return made


def _fixed_table(shape: tuple[int, int], compute: Callable[[], Tensor]) -> Tensor:
    """Return the result of `compute` as float32, or on the meta device a tensor of its shape.

    Arithmetic on that device would import torch's compiler, which takes half a second.
    """
    # A new tensor shows the default device. `torch.get_default_device` would ask the device itself,
    # which this machine may lack: fake tensors predict the memory of a run on another machine.
    if torch.empty(0).is_meta:
        return torch.empty(shape, dtype=torch.float32)
    return compute().float()


def _sines_and_cosines(angles: Tensor) -> Tensor:
    # Sines are in even columns, cosines in odd ones.
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def _angles(length: int, width: int, theta: float) -> Tensor:
    """Return `position / theta^(2i/width)`, (length, width / 2).

    They are computed in float64, since large angles lose their fraction in float32.
    """
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
