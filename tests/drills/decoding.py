"""Every way of decoding, on random models: each writes the text of the reference, and finds its hypotheses."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from drills.frame import Drill, Tally, repeats
from gpt.config import SamplingParams
from gpt.data.ngrams import NgramTable
from gpt.environment import read_settings
from gpt.generation import Batch, DecodeOptions, EagerRuntime, Hypothesis, Runtime, beam_search
from gpt.generation.backends.eager import UncachedBackend
from gpt.generation.backends.native_runtime import NativeRuntime
from gpt.generation.drafts import LookupDrafter, MakeDrafter, ModelDrafter, NgramDrafter
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.generation.tokens import RandomStream
from gpt.model import GPT
from gpt.progress import silent
from variants import draw_model

Texts = list[list[int]]
Beam = list[tuple[tuple[int, ...], float]]
"""Hypotheses, best first, with their log-probabilities."""
ROUNDING = 1e-4
"""Of the deviation of the logits: what they may differ by."""
FIGURES = ("models", "texts as by the reference", "drafts verified", "drafts accepted", "beams as by the reference")
FIGURES += ("at a tie within rounding", "other texts or beams")


def always_speculate() -> Any:
    """Return a context in which drafts are used however slow they are."""
    return patch.multiple("gpt.generation.speculative", FIRST_PLAIN=0, MAX_LOST=math.inf)


def draw_params(chance: Random, temperature: float | None) -> SamplingParams:
    """Return random parameters; the text goes beyond the window."""
    return SamplingParams(
        temperature=chance.uniform(0.4, 1.5) if temperature is None else temperature,
        max_new_tokens=32,
        top_k=chance.choice((0, 0, 2, 7)),
        top_p=chance.choice((1.0, 1.0, 0.9, 0.5)),
        min_p=chance.choice((0.0, 0.0, 0.05)),
        repetition_penalty=chance.choice((1.0, 1.0, 1.4)),
        slide_chunk=chance.choice((None, 1, 3)),
    )


def write(runtime: Runtime, prompts: Texts, params: SamplingParams, tally: Tally) -> Texts:
    """Return the tokens after each prompt, whose seed is its number."""
    batch = Batch(runtime, prompts, params, range(len(prompts)))
    steps = [batch.step() for _ in range(params.max_new_tokens)]
    if batch.speculation is not None:
        tally.count("drafts verified", batch.speculation.drafted)
        tally.count("drafts accepted", batch.speculation.accepted)
    return [[chunk.token.id for step in steps if (chunk := step[row]).token] for row in range(len(prompts))]


def ways(chance: Random, model: GPT, texts: Texts) -> Iterator[tuple[str, Runtime]]:
    """Yield the ways of decoding besides the reference; drafts are partly right."""
    yield "with a cache", EagerRuntime(model, DecodeOptions("eager", prefill_chunk=chance.choice((None, 1, 3))))
    with torch.no_grad():
        small = draw_model(chance, vocab_size=model.vocab_size)
        like = GPT(model.config).eval()
        like.load_state_dict(model.state_dict())
        for parameter in like.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    table = NgramTable.learn(np.concatenate(texts).astype(np.uint16), model.vocab_size)
    draft_by = {name: native(draft).backend for name, draft in (("another", small), ("a similar", like))}
    makers: dict[str, MakeDrafter | None] = {
        "native": None,
        "drafts from n-grams": lambda params: NgramDrafter(table),
        "drafts from the text": lambda params: LookupDrafter(),
    }
    for name, make_backend in draft_by.items():
        makers[f"drafts by {name} model"] = lambda params, make=make_backend: ModelDrafter(make(params), params)
    for name, maker in makers.items():
        yield name, native(model, maker)


def native(model: GPT, maker: MakeDrafter | None = None) -> NativeRuntime:
    return NativeRuntime(model, DecodeOptions(), read_settings(), silent, maker)


def is_rounding(model: GPT, params: SamplingParams, before: list[int], uniform: float, found: int) -> bool:
    """Return whether the reference samples a token itself, of logits that are changed by some rounding."""
    with torch.inference_mode():
        logits = UncachedBackend(model, params.slide_chunk).next_logits([before])
        noise = torch.randn(512, logits.size(1), generator=torch.Generator().manual_seed(0))
        changed = logits + ROUNDING / 3 * logits.std() * noise
        probabilities = next_token_probabilities(changed, params, [before] * len(changed))
    return found in sample(probabilities, torch.full((len(changed),), uniform)).tolist()


def compare_texts(chance: Random, model: GPT, tally: Tally, name: str) -> None:
    """Write texts in every way, greedy and by random parameters."""
    vocabulary, window = range(model.vocab_size), model.config.block_size
    prompts = [chance.choices(vocabulary, k=length) for length in (1, window // 2, window + 3)]
    runtimes: list[tuple[str, Runtime]] = []
    for temperature in (0.0, None, None, None):
        params = draw_params(chance, temperature)
        expected = write(EagerRuntime(model, DecodeOptions("eager", cache=False)), prompts, params, tally)
        runtimes = runtimes or list(ways(chance, model, expected))
        for way, runtime in runtimes:
            for row, text in enumerate(write(runtime, prompts, params, tally)):
                if text == expected[row]:
                    tally.count("texts as by the reference")
                    continue
                at = next(i for i, pair in enumerate(zip(text, expected[row], strict=True)) if pair[0] != pair[1])
                before, uniform = prompts[row] + text[:at], RandomStream(row).peek(at + 1)[at]
                excused = is_rounding(model, params, before, uniform, text[at])
                tally.count("at a tie within rounding" if excused else "other texts or beams")
                where = f"{name}, {way}, row {row}, token {at}, {params}: {text[at]} instead of {expected[row][at]}"
                tally.check(excused, f"{where}; {model.config}")


@torch.inference_mode()
def search(model: GPT, prompt: Sequence[int], beam: int, length: int) -> Beam:
    """Return the hypotheses of a beam search, written down as plainly as can be, without a cache or an end."""
    kept: Beam = [((), 0.0)]
    for _ in range(length):
        idx = torch.tensor([[*prompt, *tokens] for tokens, _ in kept])
        logprobs = model(idx)[:, -1].double().log_softmax(-1)
        every = [
            ((*tokens, token), value + float(row[token]))
            for (tokens, value), row in zip(kept, logprobs, strict=True)
            for token in range(model.vocab_size)
        ]
        kept = sorted(every, key=lambda pair: -pair[1])[:beam]
    return kept


def compare_beams(chance: Random, model: GPT, tally: Tally, name: str) -> None:
    """Search with beams of several widths: a beam of one is greedy; in others hypotheses end early, or slide."""
    prompt, window = [chance.randrange(model.vocab_size)], model.config.block_size
    reference = EagerRuntime(model, DecodeOptions("eager", cache=False))
    greedy = write(reference, [prompt], SamplingParams(temperature=0, max_new_tokens=window + 4), tally)
    beam, length, end = chance.randint(2, 6), min(window - 1, 12), chance.randrange(model.vocab_size)
    penalty, wider = chance.choice((0.0, 1.0, 2.5)), chance.randint(2, 6)
    ends: Callable[[Sequence[int]], bool] = lambda tokens: tokens[-1] == end  # noqa: E731
    best = beam_search(UncachedBackend(model), prompt, wider, window + 4, penalty, ends)
    plain: Beam = search(model, prompt, beam, length)
    ended: Beam = [(hypothesis.tokens, hypothesis.logprob) for hypothesis in best]
    for way, runtime in {"eager": EagerRuntime(model, DecodeOptions("eager")), "native": native(model)}.items():
        find, where = partial(beam_search, prompt=prompt), f"{name}, {way}, {model.config}"
        backends = (runtime.backend(SamplingParams()) for _ in range(3))
        ones = find(next(backends), beam=1, max_new_tokens=window + 4)
        tally.check(list(ones[0].tokens) == greedy[0], f"{where}: a beam of one is not greedy: {ones} for {greedy}")
        _compare(find(next(backends), beam=beam, max_new_tokens=length), plain, tally, where)
        found = find(next(backends), beam=wider, max_new_tokens=window + 4, length_penalty=penalty, is_finished=ends)
        _compare(found, ended, tally, where)


def _compare(found: Sequence[Hypothesis], expected: Beam, tally: Tally, name: str) -> None:
    """Count hypotheses that are the same, tie within rounding, or are others."""
    values = zip((one.logprob for one in found), (value for _, value in expected), strict=True)
    near = all(abs(one - value) <= ROUNDING * len(found[0].tokens) for one, value in values)
    if not tally.check(near, f"{name}: {found} instead of {expected}"):
        tally.count("other texts or beams")
    elif [one.tokens for one in found] == [tokens for tokens, _ in expected]:
        tally.count("beams as by the reference")
    else:
        tally.count("at a tie within rounding")


def attack(tally: Tally, count: int) -> None:
    """Decode by so many random models."""
    with always_speculate():
        for number in range(count):
            chance = Random(number)
            model = draw_model(chance)
            compare_texts(chance, model, tally, f"model {number}")
            compare_beams(chance, model, tally, f"model {number}")
            tally.count("models")


def run(folder: Path, full: bool) -> Tally:
    """Decode by 200 models."""
    tally = Tally(*FIGURES)
    torch.set_num_threads(1)
    attack(tally, repeats(full, 200, 6))
    return tally


PROMISE = (
    "Caches, the native engine, drafts by n-grams, by the text and by models, and beams give, by random models, greedy "
    "and sampled, the text and the hypotheses of PyTorch without a cache."
)
DRILL = Drill(PROMISE, run)
