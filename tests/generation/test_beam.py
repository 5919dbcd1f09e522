import itertools
import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from generation.scripted import Scripted
from hypothesis import given
from hypothesis import strategies as st
from native_support import needs_compiler
from torch import nn

from gpt.generation.beam import Hypothesis, beam_search
from gpt.generation.runner import Runner
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.generation.sequence import Window
from gpt.model import GPT
from gpt.system.errors import GenerationError
from patience import examples
from tiny import sharp_model
from variants import draw_model

Tokens = tuple[int, ...]
NOT_FINITE = (math.nan, math.inf, -math.inf)


def scripted(probabilities: Callable[[Tokens], list[float]]) -> Scripted:
    """A runner that gives the probabilities written down for the tokens after the prompt [0]."""
    return Scripted(lambda tokens: torch.tensor(probabilities(tuple(tokens[1:]))).log().tolist())


def runner_of(model: GPT, beam: int = 100, kind: str = "eager") -> Runner:
    return build_runtime(model, DecodeOptions(kind)).runner(beam)


class Uncached(Scripted):
    """The whole window through the model for every token."""

    def __init__(self, model: GPT) -> None:
        window = Window(model.config.block_size)
        super().__init__(lambda tokens: model(torch.tensor([window.of(tokens)]))[0, -1].tolist())
        self.block_size = model.config.block_size


def ends_with_2(tokens: Sequence[int]) -> bool:
    return tokens[-1] == 2


def shares(seed: int, tokens: Tokens) -> list[float]:
    """Probabilities of three tokens after some others, anything that depends on all of them."""
    generator = torch.Generator().manual_seed(hash((seed, tokens)) % 2**32)
    return torch.randn(3, generator=generator).softmax(dim=-1).tolist()


def logprob(seed: int, tokens: Tokens) -> float:
    return sum(math.log(shares(seed, tokens[:end])[token]) for end, token in enumerate(tokens))


def written_out(seed: int, beam: int, length: int, penalty: float) -> list[Tokens]:
    """Beam search over texts that end with token 2, or are as long as allowed."""
    live: list[Tokens] = [()]
    done: list[Tokens] = []
    for _ in range(length):
        every = [(*tokens, token) for tokens in live for token in range(3)]
        best = sorted(every, key=lambda tokens: -logprob(seed, tokens))[:beam]
        done += [tokens for tokens in best if ends_with_2(tokens)]
        live = [tokens for tokens in best if not ends_with_2(tokens)] if len(done) < beam else []
        if not live:
            break
    return sorted([*done, *live], key=lambda tokens: -logprob(seed, tokens) / len(tokens) ** penalty)[:beam]


@examples(0.25)
@given(
    seed=st.integers(0, 9999),
    beam=st.sampled_from([1, 2, 3, 5, 100]),
    length=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 0.7, 1.0, 2.5]),
)
def test_hypotheses_are_those_of_the_rules_written_out(seed: int, beam: int, length: int, penalty: float) -> None:
    found = beam_search(scripted(lambda tokens: shares(seed, tokens)), [0], beam, length, penalty, ends_with_2)
    assert [each.tokens for each in found] == written_out(seed, beam, length, penalty)
    for each in found:
        assert each.logprob == pytest.approx(logprob(seed, each.tokens), abs=1e-5)
        assert each.score == pytest.approx(each.logprob / len(each.tokens) ** penalty, abs=1e-5)
        assert each.finished is ends_with_2(each.tokens)


@torch.inference_mode()
def test_a_beam_as_wide_as_all_texts_ranks_every_text_of_a_model() -> None:
    model, prompt = sharp_model(vocab_size=4), [1, 0]
    texts = {}
    for tokens in itertools.product(range(4), repeat=3):
        logprobs = model(torch.tensor([[*prompt, *tokens]]))[0].double().log_softmax(dim=-1)
        texts[tokens] = sum(float(logprobs[1 + i, token]) for i, token in enumerate(tokens))
    found = beam_search(runner_of(model, 4**3), prompt, 4**3, 3)
    assert [each.tokens for each in found] == sorted(texts, key=lambda tokens: -texts[tokens])
    assert [each.logprob for each in found] == pytest.approx([texts[each.tokens] for each in found], abs=3e-5)


def test_a_beam_finds_what_greedy_misses() -> None:
    table = {(): [0.6, 0.4], (0,): [0.5, 0.5], (1,): [0.9, 0.1]}
    assert beam_search(scripted(table.__getitem__), [0], 1, 2)[0].tokens == (0, 0)  # is greedy
    best = beam_search(scripted(table.__getitem__), [0], 2, 2)[0]
    assert best.tokens == (1, 0)
    assert best.logprob == pytest.approx(math.log(0.36))


@pytest.mark.parametrize(("beam", "length"), [(1, 30), (8, 5)])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["eager", pytest.param("native", marks=needs_compiler)])
def test_a_cache_changes_no_hypothesis(kind: str, seed: int, beam: int, length: int) -> None:
    model = draw_model(Random(seed))
    cached, plain = (
        beam_search(each, [2, 1, 2], beam, length, is_finished=ends_with_2)
        for each in (runner_of(model, beam, kind), Uncached(model))
    )
    assert [each.tokens for each in cached] == [each.tokens for each in plain]
    assert [each.logprob for each in cached] == pytest.approx([each.logprob for each in plain], abs=1e-5 * length)


def test_among_equals_the_one_that_was_better_before_comes_first_then_the_lower_id() -> None:
    found = beam_search(scripted(lambda _: [0.25] * 4), [0], 6, 2)
    assert [hypothesis.tokens for hypothesis in found] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    table = {(): [0.25, 0.5, 0.25], (1,): [0.25, 0.5, 0.25], (0,): [0.0, 0.5, 0.5], (2,): [0.5, 0.5, 0.0]}
    tiny = {tokens: [max(value, 1e-30) for value in values] for tokens, values in table.items()}
    found = beam_search(scripted(tiny.__getitem__), [0], 3, 2)
    assert [hypothesis.tokens for hypothesis in found] == [(1, 1), (1, 0), (1, 2)]


def test_the_search_ends_once_as_many_as_the_beam_are_finished_and_gives_no_half_done_text() -> None:
    asked: list[int] = []

    def probabilities(tokens: Tokens) -> list[float]:
        asked.append(len(tokens))
        return [0.6, 0.1, 0.3]

    found = beam_search(scripted(probabilities), [0], 2, 50, is_finished=ends_with_2)
    assert [hypothesis.tokens for hypothesis in found] == [(0, 2), (2,)]
    assert asked == [0, 1]


def test_a_beam_wider_than_all_texts_gives_all_of_them() -> None:
    assert len(beam_search(runner_of(sharp_model(vocab_size=3)), [1], 100, 2)) == 9
    assert len(beam_search(runner_of(sharp_model(vocab_size=3)), [1], 100, 2, ids=2)) == 4
    assert beam_search(runner_of(sharp_model()), [1], 4, 0) == [Hypothesis((), 0.0, 0.0, finished=False)]


@pytest.mark.parametrize(
    ("prompt", "beam", "length_penalty", "message"),
    [
        *(([1], 2, value, "length_penalty is .*, expected a number of at least 0") for value in (-0.5, *NOT_FINITE)),
        ([], 2, 1.0, "at least one token"),
    ],
)
def test_what_ranks_nothing_is_refused(prompt: list[int], beam: int, length_penalty: float, message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        beam_search(runner_of(sharp_model()), prompt, beam, 3, length_penalty)
    assert len(beam_search(runner_of(sharp_model()), [1], 3, 3, 1e9)) == 3


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(weight: float) -> None:
    model = sharp_model()
    nn.init.constant_(model.ln_f.weight, weight)
    with pytest.raises(GenerationError, match="not finite"):
        beam_search(runner_of(model), [1], 2, 3)
