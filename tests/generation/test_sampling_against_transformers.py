"""The filters and their order against Hugging Face's, element by element on random logits."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gpt.config import SamplingParams
from gpt.filters import FILTERS
from gpt.generation.sampling import next_token_probabilities

WARPERS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(200, 65) * torch.linspace(0.1, 6, 200).unsqueeze(1)


@pytest.mark.parametrize(
    ("name", "values"),
    [("top_k", [1, 2, 10, 64, 65, 100]), ("top_p", [0.05, 0.3, 0.9, 0.99]), ("min_p", [0.01, 0.1, 0.5, 1.0])],
)
def test_each_filter_is_theirs(logits: Tensor, name: str, values: list[Any]) -> None:
    for value in values:
        assert torch.equal(FILTERS[name].apply(logits, value), WARPERS[name](value)(None, logits))


@pytest.mark.parametrize(
    "values",
    [(1.3, 0.7, 30, 0.95, 0.02), (0.8, 1.0, 64, 0.6, 0.1), (3.0, 2.5, 12, 0.97, 0.07), (1.2, 0.3, 50, 0.3, 0.01)],
)
def test_the_distribution_is_theirs_in_the_documented_order(logits: Tensor, values: tuple[Any, ...]) -> None:
    ids = torch.randint(65, (200, 30))
    before, theirs = logits.clone(), logits
    for warper, value in zip(WARPERS.values(), values, strict=True):
        theirs = warper(value)(ids, theirs)
    ours = next_token_probabilities(logits, SamplingParams(**dict(zip(WARPERS, values, strict=True))), ids.tolist())
    assert torch.equal(ours == 0, theirs == -math.inf)
    torch.testing.assert_close(ours, theirs.softmax(dim=-1))
    assert torch.equal(logits, before)
