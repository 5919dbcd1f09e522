import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from gpt.config import SamplingParams
from gpt.filters import FILTERS, Filter
from gpt.generation.sampling import next_token_probabilities, repetition_penalty, sample

LARGEST_BELOW_ONE = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).item()
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def probabilities(logits: list[float], **changes: float) -> list[float]:
    row = next_token_probabilities(torch.tensor([logits], dtype=torch.float32), SamplingParams(**(PLAIN | changes)))
    assert row.shape == (1, len(logits))
    return row[0].tolist()


EVERY = [0, 1, 2, 3, 4]
TIED = [2.0, 5.0, 3.0, 1.0, 3.0]
EIGHTHS = [math.log(share) for share in (0.125, 0.5, 0.25, 0.125)]


@pytest.mark.parametrize(
    ("name", "logits", "value", "ids"),
    [
        *(("top_k", TIED, k, ids) for k, ids in ((1, [1]), (2, [1, 2, 4]), (3, [1, 2, 4]), (4, [0, 1, 2, 4]))),
        *(("top_k", TIED, k, EVERY) for k in (5, 6, 10**30)),
        # reached exactly, and what is 0 in float32
        *(("top_p", EIGHTHS, p, [1]) for p in (0.3, 0.5, 1e-10, 1e-45, 1e-300)),
        *(("top_p", EIGHTHS, p, [1, 2]) for p in (0.51, 0.75)),
        ("top_p", EIGHTHS, 0.76, [0, 1, 2]),
        *(("top_p", EIGHTHS, p, [0, 1, 2, 3]) for p in (0.99, 1.0)),
        ("top_p", [0.0] * 8, 0.25, [0, 1]),
        *(("min_p", EIGHTHS, p, ids) for p, ids in ((0.0, EVERY[:4]), (0.25, EVERY[:4]), (0.3, [1, 2]), (1.0, [1]))),
    ],
)
def test_filters_at_their_edges_and_among_equals(name: str, logits: list[float], value: float, ids: list[int]) -> None:
    left = FILTERS[name].apply(torch.tensor(logits), value)
    assert (left > -math.inf).nonzero().flatten().tolist() == ids


@pytest.mark.parametrize(
    ("logits", "chosen"), [([1, 3, 3, 2], 1), ([0, 0, 0], 0), ([-5, -1, -1], 1), ([7], 0), ([1e30, 2e30, 2e30], 1)]
)
def test_greedy_takes_the_most_likely_and_the_lowest_id_among_equals(logits: list[float], chosen: int) -> None:
    expected = [float(index == chosen) for index in range(len(logits))]
    assert probabilities(logits, temperature=0) == expected
    assert probabilities(logits, temperature=0, top_k=2, top_p=0.1, min_p=1.0) == expected  # filters are idle


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_is_off_is_not_applied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(logits: Tensor, value: float) -> Tensor:
        raise AssertionError(name)

    logits, part = torch.randn(3, 7), FILTERS[name]
    monkeypatch.setitem(FILTERS, name, Filter(fail, part.field))
    params = SamplingParams(temperature=1.0, **{name: part.off})
    torch.testing.assert_close(next_token_probabilities(logits, params), logits.softmax(dim=-1))


@pytest.mark.parametrize("penalty", [1e-46, 1e39, 1e300])
def test_a_repetition_penalty_of_any_size_leaves_finite_logits_finite(penalty: float) -> None:
    penalized = repetition_penalty(torch.tensor([[2.0, -2.0, 0.0, 3.0]]), [[0, 1, 2]], penalty)
    assert penalized.isfinite().all()
    assert penalized[0, 2:].tolist() == [0.0, 3.0]


def test_a_repetition_penalty_of_one_changes_nothing_and_needs_no_context() -> None:
    logits = torch.randn(3, 7)
    plain = next_token_probabilities(logits, SamplingParams(repetition_penalty=1.0))
    assert torch.equal(plain, next_token_probabilities(logits, SamplingParams(), [[1], [2], [3]]))


any_logits = st.lists(
    st.floats(-(2.0**126), 2.0**126, width=32) | st.floats(-10, 10, width=32), min_size=1, max_size=12
)
any_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, allow_infinity=False, allow_nan=False) | st.floats(0.1, 3),
    top_k=st.integers(0, 15),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
)


@given(logits=any_logits, params=any_params)
def test_probabilities_sum_to_one_over_the_most_likely_tokens(logits: list[float], params: SamplingParams) -> None:
    row = torch.tensor(logits)
    result = next_token_probabilities(row, params)
    unfiltered = next_token_probabilities(row, SamplingParams(**(PLAIN | {"temperature": params.temperature})))
    assert result.isfinite().all()
    assert result.sum().item() == pytest.approx(1, abs=1e-5)
    least = unfiltered[result > 0].min()
    assert (unfiltered[result == 0] <= least * (1 + 1e-6)).all()


@given(
    weights=st.lists(st.just(0.0) | st.floats(2.0**-100, 1, width=32), min_size=1, max_size=12).filter(any),
    uniform=st.sampled_from([0.0, 2.0**-24, LARGEST_BELOW_ONE]) | st.floats(0, LARGEST_BELOW_ONE, width=32),
)
def test_draw_never_takes_a_token_of_probability_zero(weights: list[float], uniform: float) -> None:
    row = torch.tensor([weights]) / sum(weights)
    (token,) = sample(row, torch.tensor([uniform])).tolist()
    assert row[0, token] > 0


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (LARGEST_BELOW_ONE, 4)],
)
def test_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    row = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    assert sample(row, torch.tensor([uniform])).tolist() == [token]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("temperature", [math.nan, math.inf, -0.1]),
        ("top_p", [0.0, -0.5, 1.1, math.nan]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("top_k", [-1, 2.5]),
        ("repetition_penalty", [0.0, -1.2, math.inf]),
        *((name, [-1]) for name in ("logprobs", "end_id", "max_new_tokens", "seed")),
        *((name, ["cut"]) for name in ("overflow", "long_prompt")),
        ("stop", [("",), ("end", ""), "end"]),
        ("temprature", [1.0]),
    ],
)
def test_parameters_out_of_their_range_are_refused_by_name(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(ValidationError, match=name):
            SamplingParams(**{name: value})


def test_parameters_at_the_edge_of_their_range_are_taken() -> None:
    right = {"temperature": 0, "top_p": 1e-9, "min_p": 1.0, "max_new_tokens": 0, "stop": ("\n", "end")}
    assert SamplingParams(**right).model_dump(include=set(right)) == right
    assert SamplingParams(top_p=1.0).top_p == 1
