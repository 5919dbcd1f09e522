"""Numbers that stand for choices, as in `src/kinds.h`; `contract` compares both."""

from enum import IntEnum


class Kind(IntEnum):
    """Types of weights, and of keys and values, in memory."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    INT8_TILES = 4


class Activation(IntEnum):
    """Activations of a feed-forward network."""

    GELU = 0
    GELU_TANH = 1
    RELU = 2
    RELU_SQUARED = 3
    GATED_SILU = 4
