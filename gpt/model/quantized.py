"""Quantized linear layers for the blocks of a trained model: integers times scales, or bfloat16."""

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.model.gpt import GPT
from gpt.system.errors import InputError

TRIED_SCALES = 24
"""How many scales are tried for a group of weights.

They lie between 60% and 100% of the scale at which no weight is clipped: clipping a few large
weights may round the many small ones better.
"""


FORMATS: dict[str, tuple[int, int | None]] = {"int8": (8, None), "int4": (4, 32)}
"""Bits of integer formats, and how many inputs share a scale: with None all of an output."""
BFLOAT16 = "bf16"
NAMES = (BFLOAT16, *FORMATS)
"""Formats that `quantize` takes."""


class QuantizedLinear(nn.Module):
    """`x W^T + bias` with `W = integers * scales`; the bias stays as it was.

    Integers and scales have no values before `fill`, or before a checkpoint is loaded.

    Args:
        group: number of inputs that share a scale; None means all inputs of an output, and so
            does a number that does not divide the inputs.
    """

    integers: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear, bits: int, group: int | None) -> None:
        super().__init__()
        self.bits = bits
        outputs, inputs = linear.weight.shape
        groups = 1
        if group is not None and inputs % group == 0:
            groups = inputs // group
        device = linear.weight.device
        if bits == 8:
            integers = torch.empty(outputs, inputs, dtype=torch.int8, device=device)
        else:  # integers of 4 bits are packed, two to a byte
            integers = torch.empty(outputs, inputs // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(outputs, groups, dtype=torch.float32, device=device)
        self.register_buffer("integers", integers)
        self.register_buffer("scales", scales)
        self.bias = linear.bias

    def fill(self, weight: Tensor) -> None:
        """Round weights (F, C) to the nearest integers.

        Of `TRIED_SCALES` scales each group gets the one with the least squared error.
        """
        num_groups = self.scales.size(1)
        groups = weight.detach().float().unflatten(1, (num_groups, -1))  # type: ignore[no-untyped-call]
        largest = 2 ** (self.bits - 1) - 1  # 127 or 7, so that the range is symmetric
        integers, scales = round_to_integers(groups, largest)
        integers = integers.flatten(1)
        self.integers = pack(integers) if self.bits == 4 else integers
        self.scales = scales.squeeze(-1)

    @property
    def unpacked(self) -> Tensor:
        """Return the integers, one per byte, (F, C) int8."""
        return unpack(self.integers) if self.bits == 4 else self.integers

    @property
    def weight(self) -> Tensor:
        """Return the weights that the integers represent, (F, C) float32."""
        groups = self.unpacked.view(*self.scales.shape, -1)  # (F, groups, inputs of a group)
        return (groups * self.scales.unsqueeze(-1)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias)


class BFloat16Linear(nn.Module):
    """`x W^T + bias` with W rounded to bfloat16; the bias stays as it was."""

    rounded: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("rounded", linear.weight.detach().bfloat16())
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        return self.rounded.float()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rounded.to(x.dtype), self.bias)


def round_to_integers(weight: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Round groups (..., n) to integers from -largest to largest.

    Return the integers, (..., n) int8, and their scales, (..., 1).
    """
    # `needed` is the scale at which no weight is clipped. It must not be 0 for a group of zeros,
    # since weights are divided by it.
    needed = weight.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / largest
    best_error = torch.full_like(needed, torch.inf)
    best_scale = needed
    for share in torch.linspace(0.6, 1.0, TRIED_SCALES, dtype=torch.float32).tolist():
        scale = needed * share
        rounded = (weight / scale).round().clamp(-largest, largest)
        error = (rounded * scale - weight).square().sum(dim=-1, keepdim=True)
        # `<=` prefers the larger of equally good scales, which clips less.
        best_scale = torch.where(error <= best_error, scale, best_scale)
        best_error = torch.minimum(error, best_error)
    integers = (weight / best_scale).round().clamp(-largest, largest).to(torch.int8)
    return integers, best_scale


def pack(integers: Tensor) -> Tensor:
    """Pack (F, C) int8 from -8 to 7 into (F, C / 2) uint8.

    The first of two neighbors is in the lower half of a byte.
    """
    low_bits = integers[:, 0::2] & 15  # 4 bits of a negative number too
    high_bits = integers[:, 1::2] << 4
    return (low_bits | high_bits).view(torch.uint8)


def unpack(pairs: Tensor) -> Tensor:
    """Unpack (F, C / 2) uint8 into (F, C) int8, the inverse of `pack`."""
    both = pairs.view(torch.int8)
    # A right shift of int8 repeats the sign bit. The lower half is shifted to the left and back, so
    # that its own sign bit is repeated.
    first = both << 4 >> 4
    second = both >> 4
    return torch.stack((first, second), dim=-1).flatten(1)


# Tensors created in inference mode cannot be changed outside it, but loading has to change them.
@torch.inference_mode(False)
def quantize(model: GPT, weights: str) -> GPT:
    """Return a copy of a model whose blocks have quantized linear layers.

    Embeddings, norms and the head stay float32. The copy can be run, saved and loaded, but not
    trained.

    Args:
        weights: bf16, int8 (a scale for each output) or int4 (a scale for 32 inputs of an output;
            the number of inputs must be even).
    """
    present = weights_format(model)
    if present != "float32":
        raise InputError(
            f"the model's weights are {present} already; "
            "take the float32 ones that they were made from"
        )
    if weights not in NAMES:
        raise InputError(f"weights {weights!r}: expected one of {', '.join(NAMES)}")
    quantized = for_format(model, weights)
    for layer, narrow in zip(model.modules(), quantized.modules(), strict=True):
        if isinstance(layer, nn.Linear) and isinstance(narrow, QuantizedLinear):
            narrow.fill(layer.weight)
    return quantized


def for_format(model: GPT, weights: str) -> GPT:
    """Return the copy that `quantize` returns, before its integers have values."""
    quantized = copy.deepcopy(model).requires_grad_(False)
    for block in quantized.h:
        for parent in (block.attn, block.mlp):
            assert isinstance(parent, nn.Module)
            for name, layer in list(parent.named_children()):
                # A subclass may compute something else, and is left as it is.
                if type(layer) is nn.Linear:
                    setattr(parent, name, _narrow_layer(layer, name, weights))
    return quantized


def _narrow_layer(layer: nn.Linear, name: str, weights: str) -> BFloat16Linear | QuantizedLinear:
    """Return the layer that takes the place of a linear layer; integers have no values yet.

    Args:
        name: the layer's name, for a message.
        weights: one of `NAMES`.
    """
    if weights == BFLOAT16:
        return BFloat16Linear(layer)
    if weights == "int4" and layer.in_features % 2:
        raise InputError(
            f"int4 needs even widths, and {name} has {layer.in_features} inputs; take int8"
        )
    bits, group = FORMATS[weights]
    return QuantizedLinear(layer, bits, group)


def weights_format(model: GPT) -> str:
    """Return the format of the blocks' weights: float32, or one of `NAMES`."""
    return format_of(model.state_dict())


def format_of(weights: Mapping[str, Tensor]) -> str:
    """Return the format of saved weights, by name: float32, or one of `NAMES`."""
    # All quantized layers have integers or rounded weights of one type, which tells the format.
    known = {torch.int8: "int8", torch.uint8: "int4", torch.bfloat16: BFLOAT16}
    for name, value in weights.items():
        if name.endswith((".integers", ".rounded")):
            return known.get(value.dtype, "float32")
    return "float32"
