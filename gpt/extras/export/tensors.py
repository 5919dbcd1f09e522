"""Weights under the names of another library: renamed, concatenated, transposed, and back."""

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
    """One tensor of another library."""

    theirs: str  # its name there
    ours: tuple[str, ...]  # the tensors of ours whose rows it holds, one after another
    transposed: bool = False  # whether a matrix is stored as (in, out)


def linear(theirs: str, ours: Sequence[str], bias: bool, transposed: bool = False) -> list[Entry]:
    """Return the entries of a linear layer that holds the rows of one layer of ours, or of several."""
    weight = Entry(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), transposed)
    return (
        [weight, Entry(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours))]
        if bias
        else [weight]
    )


def to_theirs(entries: Iterable[Entry], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of another library; a bias that a layer of ours does not have is zero."""
    return {entry.theirs: _joined(entry, weights) for entry in entries}


def _joined(entry: Entry, weights: Mapping[str, Tensor]) -> Tensor:
    rows = torch.cat([_weight_or_zeros(name, weights) for name in entry.ours])
    return (rows.T if entry.transposed else rows).contiguous()


def _weight_or_zeros(name: str, weights: Mapping[str, Tensor]) -> Tensor:
    if name in weights or not name.endswith(".bias"):
        return weights[name].detach().float().cpu()
    return torch.zeros(len(weights[f"{name.removesuffix('bias')}weight"]), dtype=torch.float32)


def build_from_tensors(
    config: ModelConfig, entries: Iterable[Entry], tensors: Mapping[str, Tensor]
) -> GPT:
    """Return a model with the tensors of another library, float32, in eval mode; a bias that is missing is zero."""
    entries = list(entries)
    with meta_device():  # where wrong sizes allocate nothing
        model = GPT(config)
    check_tables(model, tensors, "the configuration")
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    weights: dict[str, Tensor] = {}
    for entry in entries:
        rows = [shapes[name][0] for name in entry.ours]
        joined = _joined_rows(entry, tensors, (sum(rows), *shapes[entry.ours[0]][1:]))
        weights.update(zip(entry.ours, joined.split_with_sizes(rows), strict=True))
    with torch.random.fork_rng(devices=[]):  # the initial weights are discarded
        model = GPT(config)
    model.load_state_dict(weights, strict=False)
    return model.eval()


def check_layers(tensors: Mapping[str, Tensor], pattern: str, layers: int) -> None:
    """Raise InputError unless tensors are of `layers` layers; `pattern` has the number of a layer as its group."""
    found = {match[1] for name in tensors if (match := re.match(pattern, name))}
    if len(found) != layers:
        raise InputError(f"the configuration has {layers} layers, the weights {len(found)}")


@contextmanager
def foreign_files(path: Path) -> Iterator[None]:
    """Turn whatever files of another program raise inside this context into an InputError of one line."""
    try:
        yield
    except GPTError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        reason = problem["msg"].removeprefix("Value error, ")
        where = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path} asks for {where + ': ' if where else ''}{reason}") from None
    except Exception as error:
        raise InputError(f"{path} is not what it should be: {explained(error)}") from None


def _joined_rows(entry: Entry, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the rows of one tensor of theirs, which have to have this shape."""
    tensor = tensors.get(entry.theirs)
    if tensor is None and entry.theirs.endswith(".bias"):
        return torch.zeros(shape, dtype=torch.float32)
    if tensor is None:
        raise InputError(f"the tensor {entry.theirs} is missing")
    rows = tensor.T if entry.transposed and tensor.dim() == 2 else tensor
    if rows.shape != shape:
        raise InputError(
            f"{entry.theirs} has shape {tuple(tensor.shape)}, which does not fit the configuration"
        )
    values = rows.float() if rows.dtype.is_floating_point else None
    if values is None or not values.isfinite().all():
        raise InputError(f"{entry.theirs} has values that are not finite numbers of floating point")
    return values
