import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt.config import SamplingParams
from gpt.config.filters import FILTERS
from gpt.generation.sampling import (
    logit_changes,
    next_token_probabilities,
    repetition_penalty,
    sample,
)

LARGEST_BELOW_ONE = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).item()
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


EVERY = [0, 1, 2, 3, 4]
TIED = [2.0, 5.0, 3.0, 1.0, 3.0]
EIGHTHS = [math.log(share) for share in (0.125, 0.5, 0.25, 0.125)]


@pytest.mark.parametrize(
    ("name", "logits", "value", "ids"),
    [
        *(
            ("top_k", TIED, k, ids)
            for k, ids in ((1, [1]), (2, [1, 2, 4]), (3, [1, 2, 4]), (4, [0, 1, 2, 4]))
        ),
        *(("top_k", TIED, k, EVERY) for k in (5, 6, 10**30)),
        # 0.5 is reached exactly by the first token; 1e-300 is 0 in float32.
        *(("top_p", EIGHTHS, p, [1]) for p in (0.3, 0.5, 1e-10, 1e-45, 1e-300)),
        *(("top_p", EIGHTHS, p, [1, 2]) for p in (0.51, 0.75)),
        ("top_p", EIGHTHS, 0.76, [0, 1, 2]),
        *(("top_p", EIGHTHS, p, [0, 1, 2, 3]) for p in (0.99, 1.0)),
        ("top_p", [0.0] * 8, 0.25, [0, 1]),
        *(
            ("min_p", EIGHTHS, p, ids)
            for p, ids in ((0.0, EVERY[:4]), (0.25, EVERY[:4]), (0.3, [1, 2]), (1.0, [1]))
        ),
    ],
)
def test_filters_at_their_edges_and_among_equals(
    name: str, logits: list[float], value: float, ids: list[int]
) -> None:
    left = FILTERS[name].apply(torch.tensor(logits), value)
    assert (left > -math.inf).nonzero().flatten().tolist() == ids


@pytest.mark.parametrize(
    ("logits", "chosen"),
    [([1, 3, 3, 2], 1), ([0, 0, 0], 0), ([-5, -1, -1], 1), ([7], 0), ([1e30, 2e30, 2e30], 1)],
)
def test_greedy_takes_the_lowest_id_among_equals(logits: list[float], chosen: int) -> None:
    for idle in ({}, {"top_k": 2, "top_p": 0.1, "min_p": 1.0}):
        found = next_token_probabilities(
            torch.tensor(logits).float(), SamplingParams(temperature=0, **idle)
        )
        assert found.tolist() == [float(index == chosen) for index in range(len(logits))]


@pytest.mark.parametrize("penalty", [1e-46, 1e39, 1e300])
def test_repetition_penalty_leaves_finite_logits_finite(penalty: float) -> None:
    penalized = repetition_penalty(torch.tensor([[2.0, -2.0, 0.0, 3.0]]), [[0, 1, 2]], penalty)
    assert penalized.isfinite().all()
    assert penalized[0, 2:].tolist() == [0.0, 3.0]


any_logits = st.lists(
    st.floats(-(2.0**126), 2.0**126, width=32) | st.floats(-10, 10, width=32),
    min_size=1,
    max_size=12,
)
any_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, allow_infinity=False, allow_nan=False) | st.floats(0.1, 3),
    top_k=st.integers(0, 15),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
)


@given(logits=any_logits, params=any_params)
def test_probabilities_sum_to_one_over_the_most_likely_tokens(
    logits: list[float], params: SamplingParams
) -> None:
    row = torch.tensor(logits)
    result = next_token_probabilities(row, params)
    unfiltered = next_token_probabilities(
        row, SamplingParams(**(PLAIN | {"temperature": params.temperature}))
    )
    assert result.isfinite().all()
    assert result.sum().item() == pytest.approx(1, abs=1e-5)
    least = unfiltered[result > 0].min()
    assert (unfiltered[result == 0] <= least * (1 + 1e-6)).all()


@given(
    weights=st.lists(
        st.just(0.0) | st.floats(2.0**-100, 1, width=32), min_size=1, max_size=12
    ).filter(any),
    uniform=st.sampled_from([0.0, 2.0**-24, LARGEST_BELOW_ONE])
    | st.floats(0, LARGEST_BELOW_ONE, width=32),
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
        ("repetition_penalty", [0.0, -1.2, math.inf]),
        *((name, [-1]) for name in ("top_k", "logprobs", "end_id", "max_new_tokens", "seed")),
        ("stop", [("",), ("end", ""), "end"]),
    ],
)
def test_parameters_out_of_their_range_are_refused_by_name(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(ValidationError, match=name):
            SamplingParams(**{name: value})


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        *((1.0, 1.0, top_k, 1.0, 0.0) for top_k in (1, 2, 10, 64, 65, 100)),
        *((1.0, 1.0, 0, top_p, 0.0) for top_p in (0.05, 0.3, 0.9, 0.99)),
        *((1.0, 1.0, 0, 1.0, min_p) for min_p in (0.01, 0.1, 0.5, 1.0)),
        *(
            (1.3, 0.7, 30, 0.95, 0.02),
            (0.8, 1.0, 64, 0.6, 0.1),
            (3.0, 2.5, 12, 0.97, 0.07),
            (1.2, 0.3, 50, 0.3, 0.01),
        ),
    ],
)
def test_distribution_equals_that_of_hugging_face(values: tuple[Any, ...]) -> None:
    import transformers as hf

    parts = {
        "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor,
        "temperature": hf.TemperatureLogitsWarper,
        "top_k": hf.TopKLogitsWarper,
        "top_p": hf.TopPLogitsWarper,
        "min_p": hf.MinPLogitsWarper,
    }
    logits = torch.randn(200, 65) * torch.linspace(0.1, 6, 200).unsqueeze(1)
    ids = torch.randint(65, (200, 30))
    params = dict(zip(parts, values, strict=True))
    before = logits.clone()
    theirs = logits
    for name, part in parts.items():
        if params[name] != PLAIN.get(name, 1.0):
            theirs = part(params[name])(ids, theirs)
    ours = next_token_probabilities(logits, SamplingParams(**params), ids.tolist())
    assert torch.equal(ours == 0, theirs == -math.inf)
    torch.testing.assert_close(ours, theirs.softmax(dim=-1))
    assert torch.equal(logits, before)


def test_penalties_and_biases_count_before_a_greedy_choice() -> None:
    params = SamplingParams(
        temperature=0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((3, -1.5), (0, 2))
    )
    changes = logit_changes(torch.Size((2, 4)), params, [[1, 1, 2], [0]])
    assert changes.tolist() == [[2.0, -1.0, -0.75, -1.5], [1.25, 0.0, 0.0, -1.5]]
    logits = torch.tensor([[0.0, 3.5, 3.0, 0.0], [0.0, 1.0, 0.0, 2.0]])
    assert next_token_probabilities(logits, params, [[1, 1, 2], [0]]).argmax(dim=-1).tolist() == [
        1,
        0,
    ]
    with pytest.raises(ValidationError, match="logit_bias"):
        SamplingParams(logit_bias=((-1, 1.0),))
