"""What a batch holds, whose randomness it uses, and the permutation that orders an epoch."""

from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.data.batches import ROUNDS, Sampler, ShuffledSampler, build_sampler, permute
from gpt.data.dataset import Mixture
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
def test_seed_alone_decides_the_batches_and_a_saved_state_continues_them(order: str) -> None:
    before = torch.get_rng_state()
    one, other, same = (build_sampler(order, TOKENS, 16, seed) for seed in (1, 2, 1))
    turns = [[draws(sampler, 1) for sampler in (one, other, same)] for _ in range(30)]
    assert all(torch.equal(a, c) and not torch.equal(a, b) for a, b, c in turns)
    state, expected = one.state_dict(), draws(same, 30)
    for resumed in (other, one):
        resumed.load_state_dict(state)
        assert torch.equal(draws(resumed, 30), expected)
    assert torch.equal(torch.get_rng_state(), before)


@EVERY_ORDER
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_mapped_file_gives_copies_of_what_the_array_gives(order: str, dtype: str, tmp_path: Path) -> None:
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
def test_epoch_predicts_every_token_once_but_those_at_both_ends(block_size: int, seed: int, more: int) -> None:
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
    sampler, one_by_one = shuffled(), shuffled()
    inputs = torch.cat([sampler.get_batch(size)[0] for size in sizes])
    assert torch.equal(inputs, draws(one_by_one, sum(sizes), 1)[:, 0, 0])
    assert sampler.state_dict() == one_by_one.state_dict()


def test_state_of_another_order_or_outside_the_epoch_is_refused() -> None:
    for saved, loaded in (("random", "shuffled"), ("shuffled", "random")):
        state = build_sampler(saved, TOKENS, 16, 1).state_dict()
        with pytest.raises(ValueError, match=r"had another data\.order"):
            build_sampler(loaded, TOKENS, 16, 1).load_state_dict(state)
    with pytest.raises(ValueError, match="its position is 61, and an epoch has 61 blocks"):
        shuffled().load_state_dict({"seed": 3, "epoch": 0, "position": 61})


def test_mixture_has_texts_by_weight_and_windows_inside_one() -> None:
    texts = np.concatenate([np.arange(40), 1000 + np.arange(200), 2000 + np.arange(100)])
    mixture = Mixture(np.array([[0, 40], [40, 240], [240, 340]]), np.array([3.0, 1.0, 4.0]))
    sampler = build_sampler("random", texts, 16, 5, mixture)
    inputs, targets = draws(sampler, 100, 80).transpose(0, 1).flatten(1, 2)
    assert torch.equal(targets, inputs + 1)  # all of a window are neighbors
    firsts = Counter((inputs[:, 0] // 1000).tolist())
    assert [firsts[text] / 8000 for text in range(3)] == pytest.approx([3 / 8, 1 / 8, 4 / 8], abs=0.02)
    assert set(inputs[inputs[:, 0] < 1000, 0].tolist()) == set(range(40 - 16))


def keys_of(seed: int) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)


def permuted(size: int, seed: int) -> list[int]:
    return permute(np.arange(size, dtype=np.uint64), size, keys_of(seed)).tolist()


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_every_element_comes_once(size: int, seed: int) -> None:
    assert sorted(permuted(size, seed)) == list(range(size))


def test_element_does_not_depend_on_which_others_are_asked_for() -> None:
    whole = permuted(1000, 5)
    for places in ([999], [3, 3, 0], range(500, 600)):
        assert permute(np.array(places, dtype=np.uint64), 1000, keys_of(5)).tolist() == [whole[i] for i in places]


def test_order_is_a_function_of_the_keys_that_no_version_changes() -> None:
    assert permuted(10, 0) == [4, 6, 8, 9, 0, 2, 5, 7, 3, 1]


@pytest.mark.parametrize("size", [4, 5])
def test_all_orders_of_a_few_elements_are_equally_frequent(size: int) -> None:
    """The chi-square statistic of 119 degrees of freedom is above 173 once in a thousand seeds, of 23 above 49.7."""
    kinds = list(permutations(range(size)))
    seen = Counter(tuple(permuted(size, seed)) for seed in range(20 * len(kinds)))
    assert sum((seen[kind] - 20) ** 2 / 20 for kind in kinds) < {4: 49.7, 5: 173.0}[size]
