"""Convert what a model reads, which is a text or token ids in any container, to a tensor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.system.errors import InputError

TextOrIds = str | Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer[Any]] | Tensor
"""A text, its ids (T,), or the ids of several texts (B, T).

Ids are integers in a list, a NumPy array or a tensor.
"""


def to_batch(given: TextOrIds, tokenizer: Tokenizer | None, device: torch.device) -> Tensor:
    """Return token ids (B, T) int64 on a device; a text or ids (T,) become a batch of 1.

    Args:
        tokenizer: encodes a text; it is not needed for ids.

    Raises:
        InputError: a text is given without a tokenizer, or neither a text nor ids (T,) or (B, T).
        DataError: the text has characters outside the vocabulary.
    """
    if isinstance(given, str):
        if tokenizer is None:
            raise InputError("a text needs its tokenizer; pass tokenizer=...")
        given = tokenizer.encode(convert_newlines(given))
    elif hasattr(given, "encode"):
        # A caller may have swapped the text and the tokenizer.
        raise InputError(
            "expected a text or token ids, got a tokenizer; swap the two, or pass tokenizer=..."
        )
    ids = given if isinstance(given, Tensor) else _to_tensor(given)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"token ids must be integers, not {str(ids.dtype).removeprefix('torch.')}")
    if ids.dim() not in (1, 2):
        raise InputError(
            f"token ids must be (time,) or (batch, time), got shape {tuple(ids.shape)}"
        )
    if ids.dim() == 1:
        ids = ids.unsqueeze(0)
    return ids.to(device, torch.int64)


def _to_tensor(given: Any) -> Tensor:
    """Return the integers of any container as an int64 tensor, or raise InputError."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError):
        # NumPy refuses lists of different lengths.
        raise InputError(
            "token ids must be a list of numbers, or lists of the same length"
        ) from None
    is_integer = array.dtype.kind in "iu"  # signed or unsigned
    # NumPy makes an array of floats of an empty list, but no number in it can be wrong.
    if array.size > 0 and not is_integer:
        raise InputError(
            f"expected a text or token ids, which are integers, got {type(given).__name__}"
        )
    return torch.from_numpy(array.astype(np.int64))


def to_list(given: TextOrIds, tokenizer: Tokenizer | None, reader: str) -> list[int]:
    """Return the ids of one text.

    Args:
        reader: name of the calling function in the message about several texts.

    Raises:
        InputError: several texts are given, or `to_batch` raises it.
        DataError: `to_batch` raises it.
    """
    ids = to_batch(given, tokenizer, torch.device("cpu"))
    if len(ids) != 1:
        raise InputError(f"{reader} takes one text, ids of shape (T,), not {tuple(ids.shape)}")
    return ids[0].tolist()
