import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from generation.support import Scripted
from hypothesis import given
from hypothesis import strategies as st
from native_support import needs_compiler
from torch import nn

from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.generation.beam import BeamOptions, beam_search
from gpt.generation.runner import Runner
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.generation.text import text_at_end
from gpt.generation.tokens import Window
from gpt.model import GPT
from gpt.system.errors import GenerationError
from patience import examples
from tiny import CORPUS, sharp_model
from variants import draw_model

Tokens = tuple[int, ...]


def scripted(probabilities: Callable[[Tokens], list[float]]) -> Scripted:
    """A runner that gives the probabilities written down for the tokens after the prompt [0]."""
    return Scripted(lambda tokens: torch.tensor(probabilities(tuple(tokens[1:]))).log().tolist())


def runner_of(model: GPT, beam: int = 100, kind: str = "eager") -> Runner:
    return build_runtime(model, DecodeOptions(kind)).runner(beam)


def ends_with_2(tokens: Sequence[int]) -> bool:
    return tokens[-1] == 2


def ended_with_2(tokens: Sequence[int]) -> Tokens | None:
    return tuple(tokens) if ends_with_2(tokens) else None


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
    return sorted(
        [*done, *live], key=lambda tokens: -logprob(seed, tokens) / len(tokens) ** penalty
    )[:beam]


@examples(0.25)
@given(
    seed=st.integers(0, 9999),
    beam=st.sampled_from([1, 2, 3, 5, 100]),
    length=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 0.7, 1.0, 2.5]),
)
def test_hypotheses_are_those_of_the_rules_written_out(
    seed: int, beam: int, length: int, penalty: float
) -> None:
    found = beam_search(
        scripted(lambda tokens: shares(seed, tokens)),
        [0],
        length,
        BeamOptions(beam, penalty, ended_with_2),
    )
    assert [each.tokens for each in found] == written_out(seed, beam, length, penalty)
    for each in found:
        assert each.logprob == pytest.approx(logprob(seed, each.tokens), abs=1e-5)
        assert each.score == pytest.approx(each.logprob / len(each.tokens) ** penalty, abs=1e-5)
        assert each.finished is ends_with_2(each.tokens)


@pytest.mark.parametrize(("beam", "length"), [(1, 30), (8, 5)])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["eager", pytest.param("native", marks=needs_compiler)])
def test_cache_changes_no_hypothesis(kind: str, seed: int, beam: int, length: int) -> None:
    model = draw_model(Random(seed))
    window = Window(model.config.block_size)
    uncached = Scripted(
        lambda tokens: model(torch.tensor([window.of(tokens)]))[0, -1].tolist(), window.size
    )
    cached, plain = (
        beam_search(each, [2, 1, 2], length, BeamOptions(beam, ended=ended_with_2))
        for each in (runner_of(model, beam, kind), uncached)
    )
    assert [each.tokens for each in cached] == [each.tokens for each in plain]
    assert [each.logprob for each in cached] == pytest.approx(
        [each.logprob for each in plain], abs=1e-5 * length
    )


def test_beam_ranks_equals_by_history_then_by_id() -> None:
    found = beam_search(scripted(lambda _: [0.25] * 4), [0], 2, BeamOptions(6))
    assert [hypothesis.tokens for hypothesis in found] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 0),
        (1, 1),
    ]
    table = {
        (): [0.25, 0.5, 0.25],
        (1,): [0.25, 0.5, 0.25],
        (0,): [1e-30, 0.5, 0.5],
        (2,): [0.5, 0.5, 1e-30],
    }
    found = beam_search(scripted(table.__getitem__), [0], 2, BeamOptions(3))
    assert [hypothesis.tokens for hypothesis in found] == [(1, 1), (1, 0), (1, 2)]


def test_beam_counts_the_same_result_once_at_its_best() -> None:
    ends = {1: "a", 2: "a", 3: "b"}
    probabilities = {(): [0.1, 0.4, 0.3, 0.2], (0,): [0.02, 0.96, 0.01, 0.01]}
    script = scripted(lambda tokens: probabilities.get(tokens, [0.25] * 4))
    found = beam_search(script, [0], 2, BeamOptions(2, ended=lambda tokens: ends.get(tokens[-1])))
    assert [each.tokens for each in found] == [(1,), (3,)]
    script = scripted(lambda tokens: probabilities.get(tokens, [0.25] * 4))
    found = beam_search(
        script, [0], 2, BeamOptions(3, 10.0, ended=lambda tokens: ends.get(tokens[-1]))
    )
    assert [each.tokens for each in found] == [(0, 1), (0, 0), (0, 3)]  # long ones are better here


def test_beam_ends_at_a_stop_string_inside_of_a_token() -> None:
    tokenizer = learn_bpe([CORPUS], 300)
    *key, line_end = tokenizer.encode("key\n").tolist()
    params = SamplingParams(stop=("th",), end_id=line_end)
    to_the = tokenizer.encode("to the").tolist()
    assert tokenizer.decode(to_the[-1:]) == " the"
    assert text_at_end(to_the, tokenizer, params) == "to "
    assert text_at_end([*key, line_end], tokenizer, params) == "key"
    for goes_on in (key, [line_end, *key], tokenizer.encode("t h").tolist()):
        assert text_at_end(goes_on, tokenizer, params) is None


def test_what_cannot_be_searched_is_refused() -> None:
    model = sharp_model()
    with pytest.raises(GenerationError, match="at least one token"):
        beam_search(runner_of(model), [], 3, BeamOptions(2))
    with pytest.raises(
        GenerationError, match="length_penalty is nan, expected a number of at least 0"
    ):
        BeamOptions(2, math.nan)
    nn.init.constant_(model.ln_f.weight, math.nan)
    with pytest.raises(GenerationError, match="not finite"):
        beam_search(runner_of(model), [1], 3, BeamOptions(2))
