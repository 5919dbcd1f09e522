import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from native_support import needs_compiler
from torch import Tensor, nn

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation import DecodeOptions, Hypothesis, beam_search, build_runtime, generate_tokens
from gpt.generation.backends.eager import CachedBackend, UncachedBackend
from gpt.model import GPT
from tiny import sharp_model

Tokens = tuple[int, ...]


@torch.inference_mode()
def logprob_of(model: GPT, prompt: list[int], tokens: Tokens) -> float:
    logprobs = model(torch.tensor([[*prompt, *tokens]]))[0].double().log_softmax(dim=-1)
    return sum(float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens))


class Scripted:
    """A backend that gives the probabilities written down for the tokens after the prompt [0]."""

    cache_bytes = 0

    def __init__(self, probabilities: Callable[[Tokens], list[float]]) -> None:
        self._probabilities = probabilities

    def next_logits(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([self._probabilities(tuple(context[1:])) for context in contexts]).log()

    def select(self, rows: Sequence[int]) -> None:
        pass


def ends_with_2(tokens: Sequence[int]) -> bool:
    return tokens[-1] == 2


def assert_ranked(found: list[Hypothesis], expected: list[tuple[Tokens, float]]) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in expected]
    most = 1e-5 * max(len(tokens) for tokens, _ in expected)  # of a sum over them
    assert [hypothesis.logprob for hypothesis in found] == pytest.approx([value for _, value in expected], abs=most)


@pytest.mark.parametrize(("vocab_size", "length"), [(3, 3), (4, 3), (4, 2), (2, 5)])
def test_a_beam_as_wide_as_all_texts_ranks_every_text(vocab_size: int, length: int) -> None:
    model, prompt = sharp_model(vocab_size=vocab_size), [1, 0]
    everything = [
        (tokens, logprob_of(model, prompt, tokens)) for tokens in itertools.product(range(vocab_size), repeat=length)
    ]
    found = beam_search(CachedBackend(model), prompt, vocab_size**length, length)
    assert_ranked(found, sorted(everything, key=lambda pair: -pair[1]))
    assert math.fsum(math.exp(hypothesis.logprob) for hypothesis in found) == pytest.approx(1, abs=1e-5)
    assert not any(hypothesis.finished for hypothesis in found)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.5])
def test_a_wide_beam_ranks_every_text_where_some_end_early(length_penalty: float) -> None:
    model, prompt = sharp_model(vocab_size=3), [1]
    texts = {
        tokens[: tokens.index(2) + 1] if 2 in tokens else tokens for tokens in itertools.product(range(3), repeat=4)
    }
    everything = [(tokens, logprob_of(model, prompt, tokens)) for tokens in texts]
    everything.sort(key=lambda pair: -pair[1] / len(pair[0]) ** length_penalty)
    found = beam_search(CachedBackend(model), prompt, 3**4, 4, length_penalty, ends_with_2)
    assert_ranked(found, everything)
    assert [hypothesis.finished for hypothesis in found] == [tokens[-1] == 2 for tokens, _ in everything]
    scores = [value / len(tokens) ** length_penalty for tokens, value in everything]
    assert [hypothesis.score for hypothesis in found] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_each_step_keeps_the_best_extensions(beam: int) -> None:
    model, prompt = sharp_model(), [4, 2]
    kept: list[tuple[Tokens, float]] = [((), 0.0)]
    for _ in range(4):
        extended = [(*tokens, token) for tokens, _ in kept for token in range(23)]
        every = [(tokens, logprob_of(model, prompt, tokens)) for tokens in extended]
        kept = sorted(every, key=lambda pair: -pair[1])[:beam]
    assert_ranked(beam_search(CachedBackend(model), prompt, beam, 4), kept)


def test_a_beam_of_one_is_greedy() -> None:
    model, params = sharp_model(), SamplingParams(temperature=0, max_new_tokens=30)
    (found,) = beam_search(CachedBackend(model), [5, 7], 1, 30)
    assert list(found.tokens) == list(generate_tokens(model, [5, 7], params))


def test_a_beam_finds_what_greedy_misses() -> None:
    table = {(): [0.6, 0.4], (0,): [0.5, 0.5], (1,): [0.9, 0.1]}
    assert beam_search(Scripted(table.__getitem__), [0], 1, 2)[0].tokens == (0, 0)
    best = beam_search(Scripted(table.__getitem__), [0], 2, 2)[0]
    assert best.tokens == (1, 0)
    assert best.logprob == pytest.approx(math.log(0.36))


@pytest.mark.parametrize(("beam", "length"), [(1, 30), (3, 30), (8, 5)])
@pytest.mark.parametrize("position", ["learned", "rope"])
@pytest.mark.parametrize("kind", ["eager", pytest.param("native", marks=needs_compiler)])
def test_a_cache_changes_no_hypothesis(kind: str, position: str, beam: int, length: int) -> None:
    model = sharp_model(position=position, n_kv_head=2)
    backend = build_runtime(model, DecodeOptions(kind)).backend(SamplingParams())
    cached = beam_search(backend, [3, 1, 4], beam, length, is_finished=lambda tokens: tokens[-1] == 3)
    plain = beam_search(UncachedBackend(model), [3, 1, 4], beam, length, is_finished=lambda tokens: tokens[-1] == 3)
    assert_ranked(cached, [(hypothesis.tokens, hypothesis.logprob) for hypothesis in plain])


@pytest.mark.parametrize(
    ("length_penalty", "best"),
    [(0.0, [(2,), (0, 0, 0)]), (0.9, [(2,), (0, 0, 0)]), (1.2, [(0, 0, 0), (2,)]), (3.0, [(0, 0, 0), (2,)])],
)
def test_a_larger_length_penalty_favors_longer_texts(length_penalty: float, best: list[Tokens]) -> None:
    """ln 0.4 for one token against 3 ln 0.4 for three: at a penalty of 1 they are equal."""
    backend = Scripted(lambda tokens: [0.4, 0.2, 0.4] if not tokens else [0.4, 0.3, 0.3])
    found = beam_search(backend, [0], 27, 3, length_penalty, ends_with_2)
    order = [hypothesis.tokens for hypothesis in found if hypothesis.tokens in best]
    assert order == best


def test_equal_hypotheses_come_in_the_order_of_their_ids() -> None:
    found = beam_search(Scripted(lambda _: [0.25] * 4), [0], 6, 2)
    assert [hypothesis.tokens for hypothesis in found] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def test_among_equals_the_one_that_was_better_before_comes_first() -> None:
    table = {(): [0.25, 0.5, 0.25], (1,): [0.25, 0.5, 0.25], (0,): [0.0, 0.5, 0.5], (2,): [0.5, 0.5, 0.0]}
    tiny = {tokens: [max(value, 1e-30) for value in values] for tokens, values in table.items()}
    found = beam_search(Scripted(tiny.__getitem__), [0], 3, 2)
    assert [hypothesis.tokens for hypothesis in found] == [(1, 1), (1, 0), (1, 2)]


def test_the_search_ends_once_as_many_as_the_beam_are_finished_and_gives_no_half_done_text() -> None:
    asked: list[int] = []

    def probabilities(tokens: Tokens) -> list[float]:
        asked.append(len(tokens))
        return [0.6, 0.1, 0.3]

    found = beam_search(Scripted(probabilities), [0], 2, 50, is_finished=ends_with_2)
    assert [hypothesis.tokens for hypothesis in found] == [(0, 2), (2,)]
    assert all(hypothesis.finished for hypothesis in found)
    assert asked == [0, 1]


@pytest.mark.parametrize("beam", [1, 2, 4, 7])
@pytest.mark.parametrize("end", [0, 5, 9])
def test_every_hypothesis_is_finished_or_as_long_as_allowed(beam: int, end: int) -> None:
    found = beam_search(CachedBackend(sharp_model()), [1], beam, 6, is_finished=lambda tokens: tokens[-1] == end)
    assert len(found) == beam
    for hypothesis in found:
        assert hypothesis.finished is (hypothesis.tokens[-1] == end)
        assert hypothesis.finished or len(hypothesis.tokens) == 6
        assert end not in hypothesis.tokens[:-1]


def test_a_beam_wider_than_all_texts_gives_all_of_them() -> None:
    assert len(beam_search(CachedBackend(sharp_model(vocab_size=3)), [1], 100, 2)) == 9
    assert len(beam_search(CachedBackend(sharp_model(vocab_size=3)), [1], 100, 2, ids=2)) == 4


def test_no_new_tokens_are_one_empty_hypothesis() -> None:
    assert beam_search(CachedBackend(sharp_model()), [1], 4, 0) == [Hypothesis((), 0.0, 0.0, finished=False)]


@pytest.mark.parametrize("length_penalty", [-0.5, math.nan, math.inf, -math.inf])
def test_a_length_penalty_that_ranks_nothing_is_refused(length_penalty: float) -> None:
    with pytest.raises(GenerationError, match=r"length_penalty is .*, expected a number of at least 0"):
        beam_search(CachedBackend(sharp_model()), [1], 2, 3, length_penalty)


def test_a_huge_length_penalty_is_taken() -> None:
    assert len(beam_search(CachedBackend(sharp_model()), [1], 3, 3, 1e9)) == 3


@pytest.mark.parametrize("beam", [0, -2])
def test_a_beam_below_one_is_refused(beam: int) -> None:
    with pytest.raises(GenerationError, match=f"beam is {beam}"):
        beam_search(CachedBackend(sharp_model()), [1], beam, 3)


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(GenerationError, match="at least one token"):
        beam_search(CachedBackend(sharp_model()), [], 2, 3)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(weight: float) -> None:
    model = sharp_model()
    nn.init.constant_(model.ln_f.weight, weight)
    with pytest.raises(GenerationError, match="not finite"):
        beam_search(CachedBackend(model), [1], 2, 3)
