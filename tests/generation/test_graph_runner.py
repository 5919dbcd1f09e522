"""Decoding in a static cache, as on a CUDA device but without graphs: the tokens are PyTorch's.

`tests/fake_cuda` replays the graphs of a stand-in, `tests/cuda` those of a device.
"""

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from generation.support import LETTERS, Drive, runtime_of

from gpt.config import SamplingParams
from gpt.generation.batch import Batch
from gpt.generation.beam import BeamOptions, beam_search
from gpt.generation.graph_runner import GraphRunner, why_no_graph
from gpt.generation.runner import Runner
from gpt.generation.runtime import in_bfloat16
from gpt.generation.sequence import Request, ScheduledWork, SequenceState
from gpt.generation.static_cache import StaticCache, parts_of
from gpt.model import GPT
from gpt.model.quantized import quantize
from tiny import sharp_model
from variants import draw_model

BATCHES = (1, 2, 3, 5, 8, 17, 32, 40, 63, 64, 65, 70)


def tokens_of(
    model: GPT, backend: str, prompts: Sequence[list[int]], params: SamplingParams
) -> list[list[int]]:
    """The tokens after each prompt, each with a seed of its own."""
    rows: list[list[int]] = [[] for _ in prompts]
    for chunk in Batch(runtime_of(model, backend), prompts, params, range(len(prompts))):
        assert chunk.token is not None
        rows[chunk.row].append(chunk.token.id)
    return rows


@pytest.mark.parametrize("seed", range(3 * len(BATCHES)))
def test_tokens_are_those_of_pytorch(seed: int) -> None:
    """Of random models and prompts, past the end of the window, while sequences end."""
    random = Random(seed)
    model = draw_model(random)
    window = model.config.block_size
    prompts = []
    for _ in range(BATCHES[seed % len(BATCHES)]):
        length = random.randint(1, window + 2)
        prompts.append(random.choices(range(model.vocab_size), k=length))
    params = SamplingParams(
        max_new_tokens=window + 7,
        temperature=random.choice((0.0, 0.8, 1.2)),
        top_k=random.choice((0, 5)),
        top_p=random.choice((1.0, 0.9)),
        min_p=random.choice((0.0, 0.05)),
        end_id=random.choice((None, 1)),
        overflow=random.choice(("slide", "stop")),
    )
    assert tokens_of(model, "graph", prompts, params) == tokens_of(model, "eager", prompts, params)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": ((3, 5.0),)},
        {"logprobs": 2},
    ],
    ids=lambda params: next(iter(params)),
)
def test_sampling_by_more_than_logits_is_pytorchs(params: dict[str, Any]) -> None:
    """The graph has the logits alone; penalties change what comes after the tokens of a text."""
    model = sharp_model(0.25)
    sampling = SamplingParams.model_validate({"max_new_tokens": 30, **params})
    prompts = [[1, 2, 3], [4], [5, 6]]
    with patch.object(GraphRunner, "_sample", side_effect=AssertionError):
        found = tokens_of(model, "graph", prompts, sampling)
    assert found == tokens_of(model, "eager", prompts, sampling)


def test_sequences_that_are_sampled_differently_share_their_steps() -> None:
    model = sharp_model(0.25)
    texts = {}
    for backend in ("eager", "graph"):
        drive = Drive(runtime_of(model, backend).engine(LETTERS, 8))
        answers = [
            drive.add("abc", max_new_tokens=40, temperature=0.5 + 0.1 * number, seed=number)
            for number in range(4)
        ]
        drive.finish()
        texts[backend] = [answer.text for answer in answers]
    assert texts["graph"] == texts["eager"]


def test_several_tokens_are_sampled_before_any_is_read() -> None:
    drive = Drive(runtime_of(sharp_model(0.25, block_size=200), "graph").engine(LETTERS, 4))
    answer = drive.add("abc", max_new_tokens=64, temperature=0.0)
    sizes = []
    while drive.engine.requests:
        before = len(answer.ids)
        drive.step()
        sizes.append(len(answer.ids) - before)
    # The first token comes from the prompt. Each call then samples twice as many, in time.
    assert sizes[:2] == [1, 1]
    assert max(sizes) >= 4
    assert sum(sizes) == 64


def test_end_of_a_prompt_is_not_kept_waiting() -> None:
    """While a prompt is computed, the others get one token a step."""
    drive = Drive(runtime_of(sharp_model(0.25, block_size=200), "graph").engine(LETTERS, 4, 8))
    first = drive.add("abc", max_new_tokens=150)
    drive.step(5)
    assert len(first.ids) > 5
    second = drive.add("v" * 60, max_new_tokens=5)
    for _ in range(60 // 8):
        before = len(first.ids)
        drive.step()
        assert len(first.ids) == before + 1
    assert not second.ids
    drive.finish()
    assert len(first.ids) == 150


def test_slot_of_a_sequence_that_ends_goes_to_the_last_one() -> None:
    drive = Drive(runtime_of(sharp_model(0.25, block_size=200), "graph").engine(LETTERS, 8))
    with patch.object(
        StaticCache, "copy_in", autospec=True, side_effect=StaticCache.copy_in
    ) as copy_in:
        answers = [
            drive.add("abcdefgh"[number:], max_new_tokens=20 + 20 * number, seed=number)
            for number in range(6)
        ]
        drive.finish()
    assert all(len(answer.ids) == 20 + 20 * number for number, answer in enumerate(answers))
    # One copy for each sequence that begins. The ends of the first three leave a hole each.
    assert copy_in.call_count == 6 + 3


def test_new_sequence_takes_no_slot_from_the_others() -> None:
    """Its first token is computed alone, and may come from a prompt of one token."""
    drive = Drive(runtime_of(sharp_model(0.25, block_size=200), "graph").engine(LETTERS, 8))
    with patch.object(
        StaticCache, "copy_in", autospec=True, side_effect=StaticCache.copy_in
    ) as copy_in:
        for letter in "abc":
            drive.add(letter, max_new_tokens=100, temperature=0.0)
        drive.step(3)
        drive.add("d", max_new_tokens=3, temperature=0.0)
        drive.finish()
    assert copy_in.call_count == 4


def test_dropout_is_off_in_a_model_that_trains() -> None:
    model = sharp_model(0.25, dropout=0.5).train()
    params = SamplingParams(max_new_tokens=30, temperature=0.0)
    expected = tokens_of(model, "eager", [[1, 2]], params)
    assert tokens_of(model, "graph", [[1, 2]], params) == expected
    assert model.training


def test_other_requests_find_what_was_decoded() -> None:
    """A text that goes on from another one is read from the blocks of that one."""
    model = sharp_model(0.25, block_size=200)
    drive = Drive(runtime_of(model, "graph").engine(LETTERS, 4))
    first = drive.add("abc", max_new_tokens=150, temperature=0.0)
    drive.finish()
    second = drive.add("abc" + first.text[:140], max_new_tokens=10, temperature=0.0)
    drive.finish()
    assert drive.engine.stats().prompt_tokens_reused == 128
    assert second.text == first.text[140:150]


def test_sequence_that_was_preempted_goes_on() -> None:
    """Three windows do not fit into the blocks of two."""
    model = sharp_model(0.25, block_size=128)
    texts = {}
    for backend in ("eager", "graph"):
        drive = Drive(runtime_of(model, backend).engine(LETTERS, 3, blocks=4))
        answers = [
            drive.add(letter * 30, max_new_tokens=200, temperature=0.9, seed=3) for letter in "abc"
        ]
        drive.finish()
        texts[backend] = [answer.text for answer in answers]
        assert drive.engine.stats().preemptions > 0
    assert texts["graph"] == texts["eager"]


def test_not_finite_logits_end_only_their_sequence() -> None:
    """What it has left in its slot, and in the padding of a batch, harms no other one."""
    model = sharp_model(0.25, block_size=64)
    texts = {}
    for backend in ("eager", "graph"):
        drive = Drive(runtime_of(model, backend).engine(LETTERS, 8))
        sound = [drive.add(letter * 5, max_new_tokens=40, temperature=0.0) for letter in "ab"]
        drive.step()
        broken = drive.add("c" * 4, max_new_tokens=40)
        drive.step(2)
        # From now on its keys and values are NaN, and those of the others are not.
        assert broken.request is not None
        sequence = drive.engine._sequences[broken.request]
        sequence.tokens[-1] = 22
        with torch.no_grad():
            weight = model.wte.weight[22].clone()
            model.wte.weight[22] = torch.nan
        drive.step()
        with torch.no_grad():
            model.wte.weight[22] = weight
        later = drive.add("d" * 3, max_new_tokens=40, temperature=0.0)
        drive.finish()
        assert broken.finish == "error"
        texts[backend] = [answer.text for answer in (*sound, later)]
    assert texts["graph"] == texts["eager"]


def next_token(runner: Runner, sequence: SequenceState) -> int:
    """Compute what is not stored of a sequence; add the most likely next token, and return it."""
    tokens = sequence.window()[sequence.num_cached :]
    copies = sequence.table.reserve(sequence.num_cached + len(tokens))
    sampled = runner.run([ScheduledWork(sequence, tokens, 1, copies)])[sequence]
    sequence.table.append(tokens)
    sequence.append(sampled)
    return sampled[0].id


def test_step_that_fails_leaves_no_sequence_with_the_slot_of_another() -> None:
    model = sharp_model(0.25, block_size=64)
    params = SamplingParams(temperature=0.0, max_new_tokens=50)
    tokens = {}
    for backend in ("eager", "graph"):
        runner = runtime_of(model, backend).runner(2)
        first, second = (
            SequenceState(Request(prompt, params), None, runner.block_size, runner.pool)
            for prompt in ([1, 2, 3], [20, 19, 18, 17])
        )
        found = [next_token(runner, first) for _ in range(5)]
        next_token(runner, second)
        if backend == "graph":
            # The second sequence takes the slot of the first, and its step fails after that.
            error = RuntimeError("out of memory")
            failing = patch.object(StaticCache, "copy_out", side_effect=error)
            with failing, pytest.raises(RuntimeError, match="out of memory"):
                next_token(runner, second)
        found += [next_token(runner, first) for _ in range(20)]
        tokens[backend] = found
    assert tokens["graph"] == tokens["eager"]


def test_beams_are_those_of_pytorch() -> None:
    model = sharp_model(0.25)
    eager, graph = (
        beam_search(runtime_of(model, backend).runner(4), [1, 2], 6, BeamOptions(4))
        for backend in ("eager", "graph")
    )
    assert [beam.tokens for beam in graph] == [beam.tokens for beam in eager]


@pytest.mark.parametrize(
    ("sequences", "batches"),
    [(1, [1]), (2, [2]), (3, [4]), (33, [64]), (64, [64]), (65, [64, 1]), (150, [64, 64, 32])],
)
def test_batches_are_powers_of_two(sequences: int, batches: list[int]) -> None:
    parts = parts_of(sequences)
    assert [part.batch for part in parts] == batches
    assert [part.first for part in parts] == [64 * number for number in range(len(parts))]


def test_model_on_a_cpu_has_no_graph() -> None:
    assert why_no_graph(sharp_model()) == "it is for CUDA devices, and the model is on cpu"


def test_bfloat16_rounds_weights_and_products_only() -> None:
    """Tables of positions stay float32, and logits are near those of bf16 weights."""
    model = quantize(sharp_model(0.25, position="rope"), "bf16")
    rounded = in_bfloat16(model)
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    assert rounded.rotation is not None
    assert {buffer.dtype for buffer in rounded.rotation.buffers()} == {torch.float32}
    idx = torch.arange(12).remainder(23).unsqueeze(0)
    with torch.no_grad():
        expected = model(idx).log_softmax(dim=-1)
        found = rounded(idx).log_softmax(dim=-1)
    assert 1e-4 < (found - expected).abs().max() / expected.std() < 0.1
    params = SamplingParams(max_new_tokens=30, temperature=0.0)
    prompts = [[1, 2, 3], [4]]
    assert tokens_of(rounded, "graph", prompts, params) == tokens_of(
        rounded, "eager", prompts, params
    )
