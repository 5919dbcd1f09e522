"""Which requests run, what they share, and who gives way, with tokens in place of keys and values."""

import pytest
import torch
from generation.support import LETTERS, WINDOW_BLOCKS, Answer, Drive, MemoryRunner, expected_tokens
from hypothesis import given
from hypothesis import strategies as st

from gpt.cache.paged import BLOCK
from gpt.generation.scheduler import TURN

PROMPTS = ["abcdefghij" * 20, "abcdefghij" * 13 + "k", "abcdefghij" * 7, "v" * 64, "v" * 65, "ab", "u" * 128]


def expected(answer: Answer) -> list[int]:
    params = answer.request.params
    uniforms = torch.rand(params.max_new_tokens, generator=torch.Generator().manual_seed(params.seed)).tolist()
    return expected_tokens(answer.request.prompt_ids, params, uniforms)


def finish(drive: Drive) -> None:
    """Every answer is the one given alone, or the beginning of that."""
    drive.finish()
    for answer in drive.answers.values():
        tokens, right = [token.id for token in answer.tokens], expected(answer)
        assert [chunk.finish for chunk in answer.chunks[:-1]] == [None] * (len(answer.chunks) - 1)
        if answer.finish == "cancelled":
            assert tokens == right[: len(tokens)]
            assert len(tokens) < answer.request.params.max_new_tokens
        else:
            assert (tokens, answer.text, answer.finish) == (right, LETTERS.decode(right), "length")


requests = st.tuples(st.sampled_from(PROMPTS), st.integers(0, 150), st.integers(0, 5))
schedules = st.lists(
    st.one_of(requests, st.integers(1, 40), st.tuples(st.just("cancel"), st.integers(0, 30))), min_size=5, max_size=30
)


@given(
    schedule=schedules,
    blocks=st.integers(WINDOW_BLOCKS, 14),
    max_sequences=st.integers(1, 6),
    prefill_chunk=st.sampled_from([5, 40, 64, 100]),
    ahead=st.sampled_from([1, 1, 3, 64]),
)
def test_every_answer_is_the_one_given_alone_whatever_comes_goes_and_gives_way(
    schedule: list[object], blocks: int, max_sequences: int, prefill_chunk: int, ahead: int
) -> None:
    drive = Drive(MemoryRunner(blocks, max_sequences, prefill_chunk, ahead))
    answers: list[Answer] = []
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


def test_the_oldest_sequence_never_gives_way() -> None:
    drive = Drive(MemoryRunner(WINDOW_BLOCKS, max_sequences=4, prefill_chunk=64))
    oldest = drive.add("a" * 60, max_new_tokens=130)
    for letter in "bcd":
        drive.add(letter * 60, max_new_tokens=130)
    while not oldest.finish:
        before = len(oldest.tokens)
        drive.step(2)  # one of the two may be for the first tokens of others
        assert oldest.finish or len(oldest.tokens) > before
    finish(drive)


def test_requests_are_begun_in_the_order_in_which_they_came() -> None:
    drive = Drive(MemoryRunner(40, max_sequences=2))
    answers = [drive.add("abc", max_new_tokens=10 + seed, seed=seed) for seed in range(7)]
    for _ in range(200):
        drive.step()
        begun = [bool(answer.tokens) for answer in answers]
        assert begun == sorted(begun, reverse=True)
    finish(drive)


def test_a_short_request_does_not_wait_for_long_ones_to_end() -> None:
    drive = Drive(MemoryRunner(4 * WINDOW_BLOCKS))
    long = [drive.add("abc"[: 1 + n % 3], max_new_tokens=1000, seed=n) for n in range(6)]
    drive.step(TURN)
    short = [drive.add("cab", max_new_tokens=5, seed=n) for n in range(3)]
    drive.step(TURN)
    assert all(answer.finish == "length" for answer in short)
    drive.step(4 * TURN)
    counts = [len(answer.tokens) for answer in long]
    assert max(counts) - min(counts) <= 2 * TURN  # of six, in four places
    before, steps = drive.engine.stats().preemptions, 10 * TURN
    drive.step(steps)
    assert drive.engine.stats().preemptions - before <= 2 * steps / TURN + 2  # two wait at a time, each for a turn
    finish(drive)


def test_a_long_prompt_does_not_stall_the_others() -> None:
    runner = MemoryRunner(40, max_sequences=4, prefill_chunk=16)
    drive = Drive(runner)
    others = [drive.add(letter, max_new_tokens=100) for letter in "abc"]
    drive.step()
    long = drive.add("k" * 190, max_new_tokens=5)
    for _ in range(190 // 16):
        before = [len(answer.tokens) for answer in others]
        drive.step()
        assert [len(answer.tokens) for answer in others] == [count + 1 for count in before]
        assert runner.computed[-1] == 16 + 3
    drive.step()
    assert (len(long.tokens), runner.computed[-1]) == (1, 190 % 16)
    finish(drive)


def test_a_new_request_gets_its_first_token_before_the_others_get_their_next_but_not_always() -> None:
    """A batch of 32 takes several times as long as a short prompt, which would wait for all of it."""
    runner = MemoryRunner(200, max_sequences=64, prefill_chunk=64)
    drive = Drive(runner)
    others = [drive.add("ab", max_new_tokens=100, seed=seed) for seed in range(20)]
    drive.step(4)
    for seed in range(10):
        new, before = drive.add("cd", max_new_tokens=100, seed=seed), len(others[0].tokens)
        drive.step()
        assert (len(new.tokens), len(others[0].tokens), runner.computed[-1]) == (1, before, 2)
        drive.add("ef", max_new_tokens=100, seed=seed)
        drive.step()
        assert {len(answer.tokens) for answer in others} == {before + 1}
    finish(drive)


def test_sequences_whose_windows_move_share_the_budget() -> None:
    """Each moves its window again and again, which costs more than a step has; all get on alike."""
    drive = Drive(MemoryRunner(64, max_sequences=8, prefill_chunk=16))
    answers = [drive.add(letter * 190, max_new_tokens=400) for letter in "abcdefgh"]
    drive.step(1500)
    counts = [len(answer.tokens) for answer in answers]
    assert min(counts) > 0.6 * max(counts) > 60
    finish(drive)


@pytest.mark.parametrize(
    ("prompts", "computed", "reused", "held"),
    [
        # full blocks of a common beginning are there once, and so is all of the same prompt but its last token
        (["abcdefghij" * 18 + letter * 2 for letter in "klmnopqr"] * 4, 181 + 7 * 53, 7 * 128 + 24 * 181, 2 + 32),
        (["abcdefghij" * 18] * 32, 179, 31 * 179, 2 + 32),
        (["ab" * 20] * 8, 39, 7 * 39, 8),
    ],
)
def test_what_prompts_begin_with_is_computed_and_held_once(
    prompts: list[str], computed: int, reused: int, held: int
) -> None:
    runner = MemoryRunner(200, max_sequences=32, prefill_chunk=4000)
    drive = Drive(runner)
    for seed, prompt in enumerate(prompts):
        drive.add(prompt, max_new_tokens=10, seed=seed)
    most = 0
    while drive.engine.requests:
        drive.step()
        most = max(most, drive.engine.stats().blocks_in_use)
    assert sum(runner.computed) == computed + 10 * len(prompts)
    assert (most, drive.engine.stats().prompt_tokens_reused) == (held, reused)
    finish(drive)


def test_several_tokens_a_step_are_sampled_where_nobody_waits() -> None:
    runner = MemoryRunner(40, max_sequences=2, ahead=16)
    drive = Drive(runner)
    for seed in range(2):
        drive.add("ab" * 30, max_new_tokens=50, seed=seed)
    finish(drive)
    assert len(runner.computed) == 2 + 4
    waiting = [drive.add("ab" * 30, max_new_tokens=20, seed=seed) for seed in range(3)]
    runner.computed.clear()
    drive.step(2)
    assert {len(answer.tokens) for answer in waiting} <= {0, 1}
    finish(drive)


def test_a_prompt_that_was_seen_before_is_not_computed_again() -> None:
    runner = MemoryRunner(40)
    drive = Drive(runner)
    drive.add("abcdefghij" * 15, max_new_tokens=4)
    finish(drive)
    runner.computed.clear()
    drive.add("abcdefghij" * 15, max_new_tokens=4, seed=3)
    finish(drive)
    assert sum(runner.computed) == 150 - 2 * BLOCK + 3


def test_a_cancelled_request_gives_its_blocks_back_at_once_and_ends_no_other() -> None:
    drive = Drive(MemoryRunner(40, max_sequences=2))
    running = [drive.add("ab" * 40, max_new_tokens=90), drive.add("cd" * 40, max_new_tokens=90)]
    queued = [drive.add("ef", max_new_tokens=9), drive.add("gh", max_new_tokens=9)]
    drive.step(10)
    held = drive.engine.stats().blocks_in_use
    for answer in (running[0], queued[0], queued[0]):
        drive.cancel(answer)
    assert drive.engine.stats().blocks_in_use == held // 2
    assert (running[0].finish, queued[0].finish, queued[0].tokens) == ("cancelled", "cancelled", [])
    finish(drive)


def test_tokens_found_are_counted_once_however_often_a_request_is_looked_at() -> None:
    drive = Drive(MemoryRunner(WINDOW_BLOCKS, max_sequences=4))
    drive.add("a" * 150, max_new_tokens=40)
    drive.step()
    drive.add("a" * 150, max_new_tokens=40)
    finish(drive)
    assert drive.engine.stats().prompt_tokens_reused <= 150
