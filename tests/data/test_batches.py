"""What a batch holds, whose randomness it uses, and the order of an epoch."""

from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.data.batches import Sampler, ShuffledSampler, build_sampler
from patience import examples

TOKENS = np.random.default_rng(0).integers(0, 200, size=1000).astype(np.uint8)
EVERY_ORDER = pytest.mark.parametrize("order", ["random", "shuffled"])


def draws(sampler: Sampler, count: int, batch_size: int = 3) -> torch.Tensor:
    """Inputs and targets of some batches, (count, 2, B, T)."""
    return torch.stack([torch.stack(sampler.get_batch(batch_size)) for _ in range(count)])


@EVERY_ORDER
def test_batch_holds_the_windows_at_its_starts(order: str) -> None:
    sampler = build_sampler(order, TOKENS, 16, 5)
    for _ in range(3):
        inputs, targets = sampler.get_batch(4)
        assert inputs.dtype == targets.dtype == torch.int64
        for row, start in enumerate(sampler.starts.tolist()):
            assert inputs[row].tolist() == TOKENS[start : start + 16].tolist()
            assert targets[row].tolist() == TOKENS[start + 1 : start + 17].tolist()


@EVERY_ORDER
def test_batches_depend_on_the_seed_and_resume_from_a_state(order: str) -> None:
    before = torch.get_rng_state()
    one, other, same = (build_sampler(order, TOKENS, 16, seed) for seed in (1, 2, 1))
    turns = [[draws(sampler, 1) for sampler in (one, other, same)] for _ in range(30)]
    assert all(torch.equal(a, c) and not torch.equal(a, b) for a, b, c in turns)
    state = one.state_dict()
    expected = draws(same, 30)
    for resumed in (other, one):
        resumed.load_state_dict(state)
        assert torch.equal(draws(resumed, 30), expected)
    assert torch.equal(torch.get_rng_state(), before)


@EVERY_ORDER
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_mapped_file_gives_copies_of_what_the_array_gives(
    order: str, dtype: str, tmp_path: Path
) -> None:
    tokens = np.arange(1000).astype(dtype)
    tokens.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=dtype, mode="r")
    found = build_sampler(order, mapped, 16, 1).get_batch(3)
    assert torch.equal(torch.stack(found), draws(build_sampler(order, tokens, 16, 1), 1)[0])
    for part in found:
        part.zero_()
    assert np.array_equal(mapped, tokens)


def shuffled(length: int = 1000, block_size: int = 16, seed: int = 3) -> ShuffledSampler:
    """Of tokens that count from 0 on, so that each tells its place."""
    return ShuffledSampler(np.arange(length), block_size, seed)


def epochs(sampler: ShuffledSampler, count: int) -> list[list[int]]:
    """Where the windows of the next epochs begin."""
    found: list[list[int]] = [[] for _ in range(count)]
    while sampler.epoch < count:
        found[sampler.epoch].append(int(sampler.get_batch(1)[0][0, 0]))
    return found


@given(st.integers(1, 60), st.integers(0, 9), st.integers(1, 200))
@examples(0.25)
def test_epoch_predicts_every_token_once_but_those_at_both_ends(
    block_size: int, seed: int, more: int
) -> None:
    length = block_size + more
    for starts in epochs(shuffled(length, block_size, seed), 3):
        ordered = sorted(starts)
        assert ordered == list(range(ordered[0], length - block_size, block_size))
        assert ordered[0] < block_size


def test_every_epoch_has_an_order_and_an_offset_of_its_own() -> None:
    found = epochs(shuffled(), 20)
    assert all(starts != sorted(starts) for starts in found)
    assert len({tuple((start - min(starts)) // 16 for start in starts) for starts in found}) == 20
    assert len({min(starts) for starts in found}) > 8


@given(st.lists(st.integers(1, 150), min_size=1, max_size=5))
@examples(0.25)
def test_batches_of_any_sizes_take_the_same_order(sizes: list[int]) -> None:
    sampler = shuffled()
    one_by_one = shuffled()
    inputs = torch.cat([sampler.get_batch(size)[0] for size in sizes])
    assert torch.equal(inputs, draws(one_by_one, sum(sizes), 1)[:, 0, 0])
    assert sampler.state_dict() == one_by_one.state_dict()


def test_epochs_of_one_seed_are_not_those_of_the_next() -> None:
    orders = [epochs(shuffled(seed=seed), 3) for seed in range(3)]
    assert len({tuple(order) for of_seed in orders for order in of_seed}) == 9


@pytest.mark.parametrize(("saved", "loaded"), [("random", "shuffled"), ("shuffled", "random")])
def test_state_of_another_order_is_refused(saved: str, loaded: str) -> None:
    state = build_sampler(saved, TOKENS, 16, 1).state_dict()
    with pytest.raises(ValueError, match=r"saved with a different data\.order"):
        build_sampler(loaded, TOKENS, 16, 1).load_state_dict(state)


def test_state_outside_the_epoch_is_refused() -> None:
    state = shuffled().state_dict()
    with pytest.raises(ValueError, match="its position is 61, and an epoch has 61 blocks"):
        shuffled().load_state_dict(state | {"position": 61})


def test_state_of_another_permutation_is_refused() -> None:
    """Before November 2026 the order was another function of seed and epoch, of which nothing was
    saved.
    """
    former = {"seed": 3, "epoch": 0, "position": 5}
    of_another_torch = shuffled().state_dict() | {"first_blocks": [7, 6, 5, 4, 3, 2, 1, 0]}
    for state in (former, of_another_torch):
        with pytest.raises(ValueError, match="another version of gpt or torch shuffled its epochs"):
            shuffled().load_state_dict(state)


def test_order_takes_eight_bytes_for_each_block() -> None:
    tokens = np.broadcast_to(np.uint8(0), 1_000_000)  # one byte of memory
    sampler = ShuffledSampler(tokens, 4, seed=1)
    tensors = [value for value in vars(sampler).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) <= 8 * 250_000


def test_texts_are_sampled_by_length_with_each_window_inside_one() -> None:
    texts = np.concatenate([np.arange(40), 1000 + np.arange(200), 2000 + np.arange(100)])
    ranges = np.array([[0, 40], [40, 240], [240, 340]])
    sampler = build_sampler("random", texts, 16, 5, ranges)
    inputs, targets = draws(sampler, 100, 80).transpose(0, 1).flatten(1, 2)
    assert torch.equal(targets, inputs + 1)  # all of a window are neighbors
    firsts = Counter((inputs[:, 0] // 1000).tolist())
    shares = [firsts[text] / 8000 for text in range(3)]
    assert shares == pytest.approx([40 / 340, 200 / 340, 100 / 340], abs=0.02)
    assert set(inputs[inputs[:, 0] < 1000, 0].tolist()) == set(range(40 - 16))


@pytest.mark.parametrize("num_blocks", [3, 4])
def test_all_orders_of_a_few_blocks_are_equally_frequent(num_blocks: int) -> None:
    """The chi-square statistic of 23 degrees of freedom is above 49.7 once in a thousand seeds, of
    5 above 20.5.
    """
    kinds = list(permutations(range(num_blocks)))
    tokens = np.arange(num_blocks * 2 + 2)  # an epoch has as many blocks of two at either offset
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(20 * len(kinds)):
        starts = epochs(ShuffledSampler(tokens, 2, seed), 1)[0]
        counts[tuple((start - min(starts)) // 2 for start in starts)] += 1
    statistic = sum((counts[kind] - 20) ** 2 / 20 for kind in kinds)
    assert statistic < {3: 20.5, 4: 49.7}[num_blocks]
