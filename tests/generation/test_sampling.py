import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import ConfigError
from gpt.filters import FILTERS, Filter, min_p_filter, top_k_filter, top_p_filter
from gpt.generation.sampling import next_token_probabilities, repetition_penalty, sample

LARGEST_BELOW_ONE = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).item()
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def probabilities(logits: list[float], **changes: float) -> list[float]:
    row = next_token_probabilities(torch.tensor([logits], dtype=torch.float32), SamplingParams(**(PLAIN | changes)))
    assert row.shape == (1, len(logits))
    return row[0].tolist()


def log(values: list[float]) -> Tensor:
    return torch.tensor(values).log()


def kept(logits: Tensor) -> list[int]:
    return (logits > -math.inf).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.090, 0.245, 0.665]), (0.5, [0.016, 0.117, 0.867]), (2.0, [0.186, 0.307, 0.506]), (0.0, [0, 0, 1])],
)
def test_temperature_sharpens_below_one_and_flattens_above(temperature: float, expected: list[float]) -> None:
    assert probabilities([1, 2, 3], temperature=temperature) == pytest.approx(expected, abs=6e-4)


def test_top_k_keeps_the_k_largest_and_renormalizes() -> None:
    assert probabilities([1, 5, 3, 2, 4], top_k=3) == pytest.approx([0, 0.665, 0.090, 0, 0.245], abs=6e-4)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    every = [0.0117, 0.0317, 0.0861, 0.2341, 0.6364]
    assert probabilities([0, 1, 2, 3, 4]) == pytest.approx(every, abs=6e-5)
    nucleus = [0, 0] + [value / sum(every[2:]) for value in every[2:]]
    assert probabilities([0, 1, 2, 3, 4], top_p=0.9) == pytest.approx(nucleus, abs=1e-4)
    assert kept(top_p_filter(log([0.001, 0.002, 0.007, 0.040, 0.950]), 0.9)) == [4]


def test_min_p_drops_what_is_less_likely_than_a_share_of_the_most_likely() -> None:
    assert probabilities(log([0.5, 0.3, 0.15, 0.05]).tolist(), min_p=0.4) == pytest.approx([0.625, 0.375, 0, 0])


@pytest.mark.parametrize(
    ("logits", "chosen"), [([1, 3, 3, 2], 1), ([0, 0, 0], 0), ([-5, -1, -1], 1), ([7], 0), ([1e30, 2e30, 2e30], 1)]
)
def test_greedy_takes_the_most_likely_and_the_lowest_id_among_equals(logits: list[float], chosen: int) -> None:
    expected = [float(index == chosen) for index in range(len(logits))]
    assert probabilities(logits, temperature=0) == expected


def test_greedy_ignores_the_filters() -> None:
    assert probabilities([1, 3, 2], temperature=0, top_k=2, top_p=0.1, min_p=1.0) == [0, 1, 0]


@pytest.mark.parametrize(
    ("k", "ids"),
    [(1, [1]), (2, [1, 2, 4]), (3, [1, 2, 4]), (4, [0, 1, 2, 4]), (5, [0, 1, 2, 3, 4])]
    + [(k, [0, 1, 2, 3, 4]) for k in (6, 1000, 10**30)],
)
def test_top_k_keeps_ties_at_the_edge_and_everything_for_k_above_the_vocabulary(k: int, ids: list[int]) -> None:
    assert kept(top_k_filter(torch.tensor([2.0, 5.0, 3.0, 1.0, 3.0]), k)) == ids


@pytest.mark.parametrize(
    ("p", "ids"),
    [
        (0.3, [1]),
        (0.5, [1]),  # reached exactly
        (0.51, [1, 2]),
        (0.75, [1, 2]),
        (0.76, [0, 1, 2]),
        (0.99, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
        (1e-10, [1]),
        (1e-45, [1]),
        (1e-300, [1]),  # zero in float32
    ],
)
def test_top_p_keeps_the_token_that_crosses_and_always_one(p: float, ids: list[int]) -> None:
    assert kept(top_p_filter(log([0.125, 0.5, 0.25, 0.125]), p)) == ids


def test_top_p_takes_the_lower_id_among_equals() -> None:
    assert kept(top_p_filter(torch.zeros(8), 0.25)) == [0, 1]


@pytest.mark.parametrize(("p", "ids"), [(0.0, [0, 1, 2, 3]), (0.25, [0, 1, 2, 3]), (0.3, [1, 2]), (1.0, [1])])
def test_min_p_keeps_the_edge_and_always_the_most_likely(p: float, ids: list[int]) -> None:
    assert kept(min_p_filter(log([0.125, 0.5, 0.25, 0.125]), p)) == ids


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_is_off_is_not_applied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(logits: Tensor, value: float) -> Tensor:
        raise AssertionError(name)

    logits, part = torch.randn(3, 7), FILTERS[name]
    monkeypatch.setitem(FILTERS, name, Filter(fail, part.field))
    params = SamplingParams(temperature=1.0, **{name: part.off})
    torch.testing.assert_close(next_token_probabilities(logits, params), logits.softmax(dim=-1))


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"top_k": 2, "top_p": 0.5}, [0]),  # top-p first would keep two
        ({"top_p": 0.5, "min_p": 0.6}, [0, 1]),  # min-p first would keep one
        ({"top_p": 0.75}, [0, 1, 2]),
        ({"top_p": 0.75, "temperature": 2.0}, [0, 1, 2]),
        ({"top_p": 0.65, "temperature": 2.0}, [0, 1, 2]),  # top-p first would keep two
        ({"min_p": 0.6}, [0, 1]),
        ({"min_p": 0.6, "temperature": 2.0}, [0, 1, 2]),  # min-p first would keep two
    ],
)
def test_temperature_comes_first_then_top_k_then_top_p_then_min_p(changes: dict[str, float], ids: list[int]) -> None:
    row = probabilities(log([0.4, 0.3, 0.2, 0.1]).tolist(), **changes)
    assert [index for index, value in enumerate(row) if value > 0] == ids


def written_out(logits: list[float], params: SamplingParams) -> list[float]:
    """The distribution, element by element; no two logits may be equal."""

    def softmax(kept: dict[int, float]) -> dict[int, float]:
        exponentials = {index: math.exp(value - max(kept.values())) for index, value in kept.items()}
        total = sum(exponentials.values())
        return {index: value / total for index, value in exponentials.items()}

    kept = {index: value / params.temperature for index, value in enumerate(logits)}
    by_size = sorted(kept, key=lambda index: -kept[index])
    if params.top_k > 0:
        kept = {index: kept[index] for index in by_size[: params.top_k]}
    nucleus, reached = {}, 0.0
    for index, probability in sorted(softmax(kept).items(), key=lambda pair: -pair[1]):
        if reached < params.top_p:
            nucleus[index] = kept[index]
        reached += probability
    shares = softmax(nucleus)
    kept = {index: nucleus[index] for index in nucleus if shares[index] >= params.min_p * max(shares.values())}
    result = softmax(kept)
    return [result.get(index, 0.0) for index in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 4, 12, 50])
@pytest.mark.parametrize("top_p", [0.03, 0.6, 0.97, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.07, 0.8])
def test_the_distribution_is_that_of_the_rules_written_out(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = 2 * torch.randn(6, 12)
    result = next_token_probabilities(logits, params)
    for row, expected in zip(result.tolist(), [written_out(row, params) for row in logits.tolist()], strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
        assert [value > 0 for value in row] == [value > 0 for value in expected]


def test_repetition_penalty_divides_what_is_above_zero_and_multiplies_what_is_below() -> None:
    logits = torch.tensor([[2.0, -2.0, 0.0, 3.0, -1.0], [2.0, -2.0, 0.0, 3.0, -1.0]])
    penalized = repetition_penalty(logits, [[0, 1, 2, 1, 1], [3]], 4.0)
    assert penalized.tolist() == [[0.5, -8.0, 0.0, 3.0, -1.0], [2.0, -2.0, 0.0, 0.75, -1.0]]
    assert logits[0].tolist() == [2.0, -2.0, 0.0, 3.0, -1.0]


@pytest.mark.parametrize("penalty", [1e-46, 1e39, 1e300])
def test_a_repetition_penalty_of_any_size_leaves_finite_logits_finite(penalty: float) -> None:
    penalized = repetition_penalty(torch.tensor([[2.0, -2.0, 0.0, 3.0]]), [[0, 1, 2]], penalty)
    assert penalized.isfinite().all()
    assert penalized[0, 2:].tolist() == [0.0, 3.0]


def test_a_repetition_penalty_below_one_makes_repetition_likelier() -> None:
    assert repetition_penalty(torch.tensor([[2.0, -2.0, 1.0]]), [[0, 1]], 0.5).tolist() == [[4.0, -1.0, 1.0]]


def test_a_repetition_penalty_of_one_changes_nothing_and_needs_no_context() -> None:
    logits = torch.randn(3, 7)
    plain = next_token_probabilities(logits, SamplingParams(repetition_penalty=1.0))
    assert torch.equal(plain, next_token_probabilities(logits, SamplingParams(), [[1], [2], [3]]))


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.3}, {"temperature": 0}], ids=str
)
def test_the_repetition_penalty_comes_before_temperature_and_filters(changes: dict[str, float]) -> None:
    logits, contexts = torch.tensor([[3.0, 2.5, 1.0, -1.0]]), [[0, 3]]
    params = SamplingParams(**(PLAIN | changes | {"repetition_penalty": 2.0}))
    expected = probabilities([1.5, 2.5, 1.0, -2.0], **changes)
    assert next_token_probabilities(logits, params, contexts)[0].tolist() == pytest.approx(expected)
    assert expected != probabilities([3.0, 2.5, 1.0, -1.0], **changes)


def test_every_row_is_penalized_for_its_own_context_only() -> None:
    logits, contexts = torch.randn(4, 9), [[0], [1, 8, 8], [3, 4], [0, 1, 2]]
    params = SamplingParams(repetition_penalty=1.7, top_k=5)
    together = next_token_probabilities(logits, params, contexts)
    for row, context in enumerate(contexts):
        alone = next_token_probabilities(logits[row : row + 1], params, [context])
        torch.testing.assert_close(together[row : row + 1], alone)


def test_every_row_is_filtered_on_its_own() -> None:
    logits = torch.randn(5, 11)
    params = SamplingParams(temperature=0.7, top_k=6, top_p=0.8, min_p=0.05)
    alone = torch.stack([next_token_probabilities(row, params) for row in logits])
    torch.testing.assert_close(next_token_probabilities(logits, params), alone)


def test_logits_are_left_as_they_were() -> None:
    logits = torch.randn(2, 7)
    before = logits.clone()
    next_token_probabilities(logits, SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1))
    assert torch.equal(logits, before)


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


@settings(max_examples=300, deadline=None)
@given(logits=any_logits, params=any_params)
def test_probabilities_sum_to_one_over_the_most_likely_tokens(logits: list[float], params: SamplingParams) -> None:
    row = torch.tensor(logits)
    result = next_token_probabilities(row, params)
    unfiltered = next_token_probabilities(row, SamplingParams(**(PLAIN | {"temperature": params.temperature})))
    assert result.isfinite().all()
    assert result.sum().item() == pytest.approx(1, abs=1e-5)
    least = unfiltered[result > 0].min()
    assert (unfiltered[result == 0] <= least * (1 + 1e-6)).all()


@settings(max_examples=300, deadline=None)
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


def test_draw_gives_each_row_its_own_number() -> None:
    rows = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    sampled = sample(rows, torch.tensor([0.1, 0.9, 0.1]))
    assert sampled.tolist() == [0, 1, 1]
    assert sampled.dtype == torch.int64


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_draws_have_the_frequencies_of_the_probabilities(changes: dict[str, float]) -> None:
    """Chi-square over 100,000 draws, against its 0.9999 quantile by Wilson and Hilferty's approximation."""
    logits = 1.5 * torch.randn(1, 12)
    expected = next_token_probabilities(logits, SamplingParams(**(PLAIN | changes)))
    counts = torch.bincount(sample(expected.expand(100_000, -1), torch.rand(100_000)), minlength=12).double()
    possible = expected[0] > 0
    assert counts[~possible].sum() == 0
    wanted = 100_000 * expected[0, possible].double()
    freedom = len(wanted) - 1
    assert freedom > 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert ((counts[possible] - wanted) ** 2 / wanted).sum() < quantile


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": -0.5},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
        {"top_k": -1},
        {"top_k": 2.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.2},
        {"repetition_penalty": math.inf},
        {"logprobs": -1},
        {"end_id": -1},
        {"slide_chunk": 0},
        {"overflow": "crop"},
        {"long_prompt": "slide"},
        {"empty_prompt": "crop"},
        {"max_new_tokens": -1},
        {"seed": -1},
        {"stop": ("",)},
        {"stop": ("end", "")},
        {"stop": "end"},
        {"temprature": 1.0},
    ],
    ids=str,
)
def test_parameters_out_of_their_range_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**wrong)
    assert all(f"{name}: " in str(caught.value) for name in wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"temperature": 0},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"max_new_tokens": 0},
        {"stop": ["\n", "end"]},
    ],
    ids=str,
)
def test_parameters_at_the_edge_of_their_range_are_taken(right: dict[str, object]) -> None:
    params = SamplingParams(**right)
    for name, value in right.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)
