"""The filters against those of Hugging Face, element by element on random logits."""

import math

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
from gpt.filters import min_p_filter, top_k_filter, top_p_filter
from gpt.generation.sampling import next_token_probabilities, repetition_penalty


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(200, 65) * torch.linspace(0.1, 6, 200).unsqueeze(1)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(65, (200, 30))


@pytest.mark.parametrize("k", [1, 2, 10, 64, 65, 100])
def test_top_k(logits: Tensor, ids: Tensor, k: int) -> None:
    assert torch.equal(top_k_filter(logits, k), TopKLogitsWarper(k)(ids, logits))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9, 0.99])
def test_top_p(logits: Tensor, ids: Tensor, p: float) -> None:
    assert torch.equal(top_p_filter(logits, p), TopPLogitsWarper(p)(ids, logits))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 1.0])
def test_min_p(logits: Tensor, ids: Tensor, p: float) -> None:
    assert torch.equal(min_p_filter(logits, p), MinPLogitsWarper(p)(ids, logits))


@pytest.mark.parametrize("penalty", [0.8, 1.2, 3.0])
def test_repetition_penalty(logits: Tensor, ids: Tensor, penalty: float) -> None:
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)
    torch.testing.assert_close(repetition_penalty(logits, ids.tolist(), penalty), theirs)


def test_all_of_them_in_the_documented_order(logits: Tensor, ids: Tensor) -> None:
    params = SamplingParams(repetition_penalty=1.3, temperature=0.7, top_k=30, top_p=0.95, min_p=0.02)
    theirs = logits
    for warper in (
        RepetitionPenaltyLogitsProcessor(1.3),
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(30),
        TopPLogitsWarper(0.95),
        MinPLogitsWarper(0.02),
    ):
        theirs = warper(ids, theirs)
    ours = next_token_probabilities(logits, params, ids.tolist())
    assert torch.equal(ours == 0, theirs == -math.inf)
    torch.testing.assert_close(ours, theirs.softmax(dim=-1))
