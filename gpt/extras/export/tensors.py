"""Weights under the names of another library: renamed, concatenated, transposed, and back.

A layout is a list of entries, one for each tensor of the other library. Exporting and importing
read the same list, so that the two directions cannot disagree.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from gpt.checkpoint.loading import check_tables
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.system.device import meta_device
from gpt.system.errors import GPTError, InputError, explained


class Entry(NamedTuple):
    """One tensor of another library, and the tensors of a `GPT` that it is made of."""

    theirs: str  # the name of the tensor in the other library
    ours: tuple[str, ...]  # names in a `GPT`; their rows are stored one tensor after another
    transposed: bool = False  # whether the other library stores the matrix as (in, out)


def linear(theirs: str, ours: Sequence[str], bias: bool, transposed: bool = False) -> list[Entry]:
    """Return the entries of a linear layer that holds the rows of one or more layers of a `GPT`."""
    weights = tuple(f"{name}.weight" for name in ours)
    entries = [Entry(f"{theirs}.weight", weights, transposed)]
    if bias:
        biases = tuple(f"{name}.bias" for name in ours)
        entries.append(Entry(f"{theirs}.bias", biases))
    return entries


def to_theirs(entries: Iterable[Entry], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of another library; a bias that the `GPT` lacks is written as zeros."""
    return {entry.theirs: _joined(entry, weights) for entry in entries}


def _joined(entry: Entry, weights: Mapping[str, Tensor]) -> Tensor:
    tensors = [_weight_or_zeros(name, weights) for name in entry.ours]
    joined = torch.cat(tensors)  # (out, in) or (out,)
    if entry.transposed:
        joined = joined.T
    return joined.contiguous()  # safetensors refuses tensors that are views of another order


def _weight_or_zeros(name: str, weights: Mapping[str, Tensor]) -> Tensor:
    """Return a float32 tensor on the CPU; a missing bias is zeros, a missing weight a KeyError."""
    is_missing_bias = name.endswith(".bias") and name not in weights
    if is_missing_bias:
        weight_name = name.removesuffix("bias") + "weight"
        out_features = len(weights[weight_name])
        return torch.zeros(out_features, dtype=torch.float32)
    return weights[name].detach().float().cpu()


def build_from_tensors(
    config: ModelConfig, entries: Iterable[Entry], tensors: Mapping[str, Tensor]
) -> GPT:
    """Return a float32 model in eval mode with the tensors of another library.

    A bias that the other library lacks becomes zeros.

    Raises:
        InputError: a weight is missing, has another shape, or is not finite.
    """
    # The shapes come from a model on the meta device: a damaged configuration may ask for more
    # memory than there is, and nothing is allocated before the tensors are known to fit it.
    with meta_device():
        shape_model = GPT(config)
    check_tables(shape_model, tensors, "the configuration")
    shapes = {name: tensor.shape for name, tensor in shape_model.state_dict().items()}

    weights: dict[str, Tensor] = {}
    for entry in entries:
        row_counts = [shapes[name][0] for name in entry.ours]
        other_dimensions = shapes[entry.ours[0]][1:]  # (in,) of a matrix, () of a vector
        joined = _read_rows(entry, tensors, (sum(row_counts), *other_dimensions))
        parts = joined.split_with_sizes(row_counts)
        weights.update(zip(entry.ours, parts, strict=True))

    # The initial weights are overwritten, so drawing them does not advance the caller's generator.
    with torch.random.fork_rng(devices=[]):
        model = GPT(config)
    # Not strict: a tied head and the tables of positions are no entries.
    model.load_state_dict(weights, strict=False)
    return model.eval()


def check_layers(tensors: Mapping[str, Tensor], pattern: str, layers: int) -> None:
    """Raise InputError unless the tensors belong to exactly `layers` layers.

    Args:
        pattern: a regular expression for names of tensors; its group is the number of the layer.
    """
    matches = [re.match(pattern, name) for name in tensors]
    found = {match[1] for match in matches if match is not None}
    if len(found) != layers:
        raise InputError(f"the configuration has {layers} layers, the weights {len(found)}")


@contextmanager
def foreign_files(path: Path) -> Iterator[None]:
    """Turn whatever reading the files of another program raises into an InputError of one line.

    Foreign files may be of any type and shape, so that any expression on them may raise anything.
    """
    try:
        yield
    except GPTError as error:
        message = str(error)
        if str(path) not in message:
            message = f"{path}: {message}"
        raise InputError(message) from None
    except ValidationError as error:
        problem = error.errors()[0]
        reason = problem["msg"].removeprefix("Value error, ")
        key = ".".join(map(str, problem["loc"]))
        if key:  # a check of several keys together has no location
            reason = f"{key}: {reason}"
        raise InputError(f"{path} asks for {reason}") from None
    except Exception as error:
        raise InputError(f"{path} is not what it should be: {explained(error)}") from None


def _read_rows(entry: Entry, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of the other library in float32, as (out, in) or (out,) of this shape."""
    tensor = tensors.get(entry.theirs)
    if tensor is None:
        if entry.theirs.endswith(".bias"):
            return torch.zeros(shape, dtype=torch.float32)
        raise InputError(f"the tensor {entry.theirs} is missing")
    rows = tensor
    if entry.transposed and tensor.dim() == 2:  # any other number of dimensions is refused below
        rows = tensor.T
    if rows.shape != shape:
        raise InputError(
            f"{entry.theirs} has shape {tuple(tensor.shape)}, which does not fit the configuration"
        )
    if rows.dtype.is_floating_point:  # integers would be quantized weights without their scales
        values = rows.float()
        if values.isfinite().all():
            return values
    raise InputError(f"{entry.theirs} has values that are not finite numbers of floating point")
