from typing import Any

import numpy as np
import pytest
import torch

from gpt.data import CharTokenizer
from gpt.data.token_ids import to_batch, to_list
from gpt.system.errors import InputError

TOKENIZER, CPU = CharTokenizer("abc"), torch.device("cpu")
READ_ONLY = np.array([0, 2, 1], np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "given",
    ["acb", [0, 2, 1], (0, 2, 1), [[0, 2, 1]], READ_ONLY, TOKENIZER.encode("acb")[None], torch.tensor([0, 2, 1]).int()],
    ids=["text", "list", "tuple", "batch", "array", "encoded", "tensor"],
)
def test_one_text_in_any_container_is_a_batch_of_one(given: Any) -> None:
    ids = to_batch(given, TOKENIZER, CPU)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[0, 2, 1]]
    assert to_list(given, TOKENIZER, "reader") == [0, 2, 1]


def test_several_texts_stay_several() -> None:
    assert to_batch(np.eye(2, dtype=np.uint16), None, CPU).tolist() == [[1, 0], [0, 1]]
    assert to_batch([], None, CPU).shape == (1, 0)
    with pytest.raises(InputError, match=r"reader takes one text, ids of shape \(T,\), not \(2, 2\)"):
        to_list([[1, 0], [0, 1]], None, "reader")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc", "a text needs its tokenizer"),
        (b"abc", "expected a text or token ids, which are integers, got bytes"),
        (None, "got NoneType"),
        ([1.5], "got list"),
        (["a"], "got list"),
        ([[1], [1, 2]], "lists of the same length"),
        (torch.tensor([1.0]), "must be integers, not float32"),
        (torch.tensor([True]), "must be integers, not bool"),
        (5, r"got shape \(\)"),
        (torch.zeros(1, 1, 1).long(), r"got shape \(1, 1, 1\)"),
    ],
)
def test_what_is_no_text_and_no_ids_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_batch(given, None, CPU)
