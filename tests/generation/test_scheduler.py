"""Which requests run, what they share, and who gives way; tokens stand for keys and values."""

from collections.abc import Sequence

import pytest
import torch
from generation.support import LETTERS, Drive, Text
from hypothesis import given
from hypothesis import strategies as st

from gpt.generation.engine import Engine
from gpt.generation.paged import BLOCK, BlockPool
from gpt.generation.runner import Runner, Sampled
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken, Window

BLOCK_SIZE = 200
WINDOW_BLOCKS = 4
PROMPTS = [
    "abcdefghij" * 20,
    "abcdefghij" * 13 + "k",
    "abcdefghij" * 7,
    "v" * 64,
    "v" * 65,
    "ab",
    "u" * 128,
]


class MemoryRunner(Runner):
    """Stores tokens where keys and values would lie, and samples from all that a sequence finds in
    its blocks.

    Attributes:
        computed: tokens of each step.
    """

    max_samples_per_call = 1

    def __init__(self, blocks: int) -> None:
        super().__init__(BLOCK_SIZE, BlockPool(blocks, BLOCK))
        self.computed: list[int] = []
        self._memory = [[-1] * BLOCK for _ in range(blocks)]

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], torch.Tensor]:
        raise NotImplementedError

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        self.computed.append(sum(len(item.tokens) for item in work))
        for target, source in (pair for item in work for pair in item.copies):
            self._memory[target] = list(self._memory[source])
        written: list[tuple[int, int]] = []
        for item in work:
            written += self._write(item.sequence, item.sequence.num_cached, item.tokens)
        sampled: Sampled = {}
        for item in work:
            sequence = item.sequence
            steps = item.max_samples
            found = self._read(sequence, sequence.num_cached + len(item.tokens))
            assert found == sequence.window()[: len(found)]
            if steps == 0:
                continue
            new: list[SampledToken] = []
            for uniform in sequence.random.peek(steps):
                new.append(SampledToken(token_after(found, uniform)))
                if len(new) < steps:
                    written += self._write(sequence, len(found), [new[-1].id])
                    found = self._read(sequence, len(found) + 1)
            sampled[sequence] = new
        assert len(set(written)) == len(written)
        return sampled

    def _write(
        self, sequence: SequenceState, start: int, tokens: Sequence[int]
    ) -> list[tuple[int, int]]:
        places = [
            (sequence.table.blocks[i // BLOCK], i % BLOCK)
            for i in range(start, start + len(tokens))
        ]
        for (block, offset), token in zip(places, tokens, strict=True):
            self._memory[block][offset] = token
        return places

    def _read(self, sequence: SequenceState, length: int) -> list[int]:
        return [self._memory[sequence.table.blocks[i // BLOCK]][i % BLOCK] for i in range(length)]


def token_after(window: Sequence[int], uniform: float) -> int:
    """Return the next token: any function of every token before it and of their number."""
    return hash((*window, uniform)) % 23


def drive_of(
    blocks: int, max_sequences: int = 4, prefill_chunk: int = 32, ahead: int = 1
) -> tuple[Drive, list[int]]:
    """An engine, and the tokens that it computes in each step."""
    runner = MemoryRunner(blocks)
    runner.max_samples_per_call = ahead
    return Drive(Engine(runner, LETTERS, max_sequences, prefill_chunk)), runner.computed


def finish(drive: Drive) -> None:
    """Every answer is the one given alone, or the beginning of that."""
    drive.finish()
    for request, answer in drive.answers.items():
        count = request.params.max_new_tokens
        window = Window(BLOCK_SIZE)
        right = list(request.prompt_ids)
        for uniform in torch.rand(
            count, generator=torch.Generator().manual_seed(request.params.seed)
        ).tolist():
            right.append(token_after(window.of(right), uniform))
        del right[: len(request.prompt_ids)]
        assert [chunk.finish for chunk in answer.chunks[:-1]] == [None] * (len(answer.chunks) - 1)
        if answer.finish == "cancelled":
            assert answer.ids == right[: len(answer.ids)]
            assert len(answer.ids) < count
        else:
            assert (answer.ids, answer.text, answer.finish) == (
                right,
                LETTERS.decode(right),
                "length",
            )


requests = st.tuples(st.sampled_from(PROMPTS), st.integers(0, 150), st.integers(0, 5))
schedules = st.lists(
    st.one_of(requests, st.integers(1, 40), st.tuples(st.just("cancel"), st.integers(0, 30))),
    min_size=5,
    max_size=30,
)


@given(
    schedule=schedules,
    blocks=st.integers(WINDOW_BLOCKS, 14),
    max_sequences=st.integers(1, 6),
    prefill_chunk=st.sampled_from([5, 40, 64, 100]),
    ahead=st.sampled_from([1, 1, 3, 64]),
)
def test_answers_are_those_given_alone(
    schedule: list[object], blocks: int, max_sequences: int, prefill_chunk: int, ahead: int
) -> None:
    drive, _ = drive_of(blocks, max_sequences, prefill_chunk, ahead)
    answers: list[Text] = []
    for event in schedule:
        match event:
            case int(steps):
                drive.step(steps)
            case ("cancel", int(which)):
                if answers:
                    drive.cancel(answers[which % len(answers)])
            case (str(prompt), int(tokens), int(seed)):
                answers.append(drive.add(prompt, max_new_tokens=tokens, seed=seed))  # type: ignore[has-type]
    finish(drive)


def test_oldest_sequence_never_gives_way() -> None:
    drive, _ = drive_of(WINDOW_BLOCKS, prefill_chunk=64)
    oldest, *_ = [drive.add(letter * 60, max_new_tokens=130) for letter in "abcd"]
    while not oldest.finish:
        before = len(oldest.tokens)
        drive.step(2)  # one of the two may be for the first tokens of others
        assert oldest.finish or len(oldest.tokens) > before
    finish(drive)


def test_long_prompt_does_not_stall_the_others() -> None:
    drive, computed = drive_of(40, prefill_chunk=16)
    others = [drive.add(letter, max_new_tokens=100) for letter in "abc"]
    drive.step()
    long = drive.add("k" * 190, max_new_tokens=5)
    for number in range(190 // 16):
        drive.step()
        assert [len(answer.tokens) for answer in others] == [2 + number] * 3
        assert computed[-1] == 16 + 3
    drive.step()
    assert (len(long.tokens), computed[-1]) == (1, 190 % 16)


def test_request_waits_for_blocks_for_its_whole_prompt() -> None:
    """Admitted earlier, it would take the blocks of one that runs."""
    drive, _ = drive_of(WINDOW_BLOCKS, prefill_chunk=4000)
    for letter in "ab":
        drive.add(letter * 150, max_new_tokens=20)  # three of four blocks
    drive.step(10)
    stats = drive.engine.stats()
    assert (stats.running, stats.waiting, stats.preemptions) == (1, 1, 0)
    finish(drive)


def test_new_request_comes_first_in_every_other_step() -> None:
    """A batch of 32 takes several times as long as a short prompt, which must not wait for it."""
    drive, computed = drive_of(200, max_sequences=64, prefill_chunk=64)
    others = [drive.add("ab", max_new_tokens=100, seed=seed) for seed in range(20)]
    drive.step(4)
    for seed in range(10):
        new = drive.add("cd", max_new_tokens=100, seed=seed)
        before = len(others[0].tokens)
        drive.step()
        assert (len(new.tokens), len(others[0].tokens), computed[-1]) == (1, before, 2)
        drive.add("ef", max_new_tokens=100, seed=seed)
        drive.step()
        assert {len(answer.tokens) for answer in others} == {before + 1}


def test_sequences_whose_windows_move_share_the_budget() -> None:
    """Each moves its window again and again, which costs more than a step has; all get on alike."""
    drive, _ = drive_of(64, max_sequences=8, prefill_chunk=16)
    answers = [drive.add(letter * 190, max_new_tokens=400) for letter in "abcdefgh"]
    drive.step(1500)
    counts = [len(answer.tokens) for answer in answers]
    assert min(counts) > 0.6 * max(counts) > 60


@pytest.mark.parametrize(
    ("prompts", "computed", "reused", "held"),
    [
        # full blocks of a common beginning are there once, and so is all of the same prompt but its
        # last token
        (
            ["abcdefghij" * 18 + letter * 2 for letter in "klmnopqr"] * 4,
            181 + 7 * 53,
            7 * 128 + 24 * 181,
            2 + 32,
        ),
        (["abcdefghij" * 18] * 32, 179, 31 * 179, 2 + 32),
        (["ab" * 20] * 8, 39, 7 * 39, 8),
    ],
)
def test_shared_beginnings_are_computed_and_held_once(
    prompts: list[str], computed: int, reused: int, held: int
) -> None:
    drive, in_steps = drive_of(200, max_sequences=32, prefill_chunk=4000)
    for seed, prompt in enumerate(prompts):
        drive.add(prompt, max_new_tokens=10, seed=seed)
    most = 0
    while drive.engine.requests:
        drive.step()
        most = max(most, drive.engine.stats().blocks_in_use)
    assert sum(in_steps) == computed + 10 * len(prompts)
    assert (most, drive.engine.stats().prompt_tokens_reused) == (held, reused)
    in_steps.clear()  # of a prompt that was seen before, full blocks are found
    drive.add(prompts[0], max_new_tokens=4, seed=3)
    finish(drive)
    assert sum(in_steps) == len(prompts[0]) - len(prompts[0]) // BLOCK * BLOCK + 3


def test_several_tokens_a_step_are_sampled_where_nobody_waits() -> None:
    drive, computed = drive_of(40, max_sequences=2, ahead=16)
    for seed in range(2):
        drive.add("ab" * 30, max_new_tokens=50, seed=seed)
    finish(drive)
    assert len(computed) == 2 + 4
    waiting = [drive.add("ab" * 30, max_new_tokens=20, seed=seed) for seed in range(3)]
    drive.step(2)
    assert {len(answer.tokens) for answer in waiting} <= {0, 1}
    finish(drive)


def test_cancelled_request_returns_its_blocks_at_once() -> None:
    drive, _ = drive_of(40, max_sequences=2)
    running = [drive.add("ab" * 40, max_new_tokens=90), drive.add("cd" * 40, max_new_tokens=90)]
    queued = [drive.add("ef", max_new_tokens=9), drive.add("gh", max_new_tokens=9)]
    drive.step(10)
    held = drive.engine.stats().blocks_in_use
    for answer in (running[0], queued[0], queued[0]):
        drive.cancel(answer)
    assert drive.engine.stats().blocks_in_use == held // 2
    assert (running[0].finish, queued[0].finish, queued[0].tokens) == ("cancelled", "cancelled", [])
    finish(drive)


@given(block_size=st.integers(1, 40), length=st.integers(1, 200))
def test_window_holds_all_that_fits_and_moves_by_quarters(block_size: int, length: int) -> None:
    window = Window(block_size)
    start = window.start(length)
    held = window.of(range(length))
    assert window.chunk == max(1, block_size // 4)
    assert list(held) == list(range(start, length))
    assert (start == 0) is (length <= block_size)
    assert min(length, block_size - window.chunk + 1) <= len(held) <= block_size
    assert start % window.chunk == 0
