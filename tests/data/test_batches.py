"""What a batch holds, and whose randomness it uses."""

import mmap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt.data import tokens as tokens_module
from gpt.data.batches import BatchSampler, Sampler, ShuffledSampler, build_sampler
from gpt.data.tokens import Tokens

Batch = tuple[torch.Tensor, torch.Tensor]


def draws(sampler: Sampler, count: int = 5, batch_size: int = 3) -> torch.Tensor:
    """Inputs and targets of some batches, (count, 2, B, T)."""
    return torch.stack([torch.stack(sampler.get_batch(batch_size)) for _ in range(count)])


@pytest.fixture
def tokens() -> Tokens:
    return np.random.default_rng(0).integers(0, 200, size=1000).astype(np.uint8)


@pytest.fixture
def mapped(tokens: Tokens, tmp_path: Path) -> Callable[[], Tokens]:
    """Maps the tokens from a file."""
    path = tmp_path / "tokens.bin"
    path.write_bytes(tokens.tobytes())
    return lambda: np.memmap(path, dtype=tokens.dtype, mode="r")


def test_targets_are_the_inputs_moved_by_one(tokens: Tokens) -> None:
    inputs, targets = BatchSampler(tokens, block_size=16, seed=1).get_batch(8)
    assert inputs.shape == targets.shape == (8, 16)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    text = tokens.tobytes()
    for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert bytes([*row, target[-1]]) in text


def test_every_place_is_drawn_equally_often_from_the_first_to_the_last() -> None:
    """The chi-square statistic of 20 degrees of freedom is above 45.3 once in a thousand seeds."""
    length, block_size, count = 25, 4, 21_000
    sampler = BatchSampler(np.arange(length, dtype=np.uint8), block_size, seed=3)
    inputs, targets = sampler.get_batch(count)
    places = Counter(inputs[:, 0].tolist())
    assert sorted(places) == list(range(length - block_size))
    assert targets.max() == length - 1
    expected = count / len(places)
    assert sum((seen - expected) ** 2 / expected for seen in places.values()) < 45.3


def test_a_split_of_one_window_gives_that_window() -> None:
    inputs, targets = BatchSampler(np.arange(5, dtype=np.uint16), block_size=4, seed=0).get_batch(2)
    assert inputs.tolist() == [[0, 1, 2, 3]] * 2
    assert targets.tolist() == [[1, 2, 3, 4]] * 2


def test_the_seed_decides_the_sequence(tokens: Tokens) -> None:
    first, same, other = (draws(BatchSampler(tokens, 16, seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_one_gather_is_the_loop_that_anyone_would_write(tokens: Tokens) -> None:
    sampler, generator = BatchSampler(tokens, 16, seed=5), torch.Generator().manual_seed(5)
    for _ in range(3):
        inputs, targets = sampler.get_batch(4)
        starts = torch.randint(len(tokens) - 16, (4,), generator=generator).tolist()
        cut = [torch.from_numpy(tokens[start : start + 17].astype(np.int64)) for start in starts]
        assert torch.equal(inputs, torch.stack([window[:-1] for window in cut]))
        assert torch.equal(targets, torch.stack([window[1:] for window in cut]))


def test_a_saved_state_continues_exactly(tokens: Tokens) -> None:
    sampler = BatchSampler(tokens, 16, seed=1)
    draws(sampler)
    state = sampler.state_dict()
    expected = draws(sampler)
    resumed = BatchSampler(tokens, 16, seed=999)
    resumed.load_state_dict(state)
    assert torch.equal(draws(resumed), expected)
    sampler.load_state_dict(state)
    assert torch.equal(draws(sampler), expected)


def test_samplers_disturb_neither_each_other_nor_torch(tokens: Tokens) -> None:
    alone = draws(BatchSampler(tokens, 16, seed=1))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, other = BatchSampler(tokens, 16, seed=1), BatchSampler(tokens, 16, seed=1)
    together = []
    for _ in range(5):
        together.append(draws(one, count=1))
        draws(other, count=2)
    assert torch.equal(torch.cat(together), alone)
    assert torch.equal(torch.rand(3), expected)
    torch.rand(100)
    assert torch.equal(draws(BatchSampler(tokens, 16, seed=1)), alone)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_a_mapped_file_gives_what_the_array_gives(dtype: type[np.unsignedinteger[Any]], tmp_path: Path) -> None:
    tokens = np.arange(1000).astype(dtype)
    path = tmp_path / "tokens.bin"
    path.write_bytes(tokens.tobytes())
    mapped = np.memmap(path, dtype=dtype, mode="r")
    assert torch.equal(draws(BatchSampler(mapped, 16, seed=1)), draws(BatchSampler(tokens, 16, seed=1)))


class CountedMap(mmap.mmap):
    """A mapping that counts how often its pages are given back."""

    given_back = 0

    def madvise(self, *advice: int) -> None:
        assert advice == (mmap.MADV_DONTNEED,)
        super().madvise(*advice)
        CountedMap.given_back += 1


@pytest.mark.parametrize(("keep", "times"), [(0, 5), (999, 5), (1000, 0), (tokens_module.KEEP_RESIDENT, 0)])
def test_only_a_large_file_gives_its_pages_back_and_batches_are_the_same(
    keep: int, times: int, tokens: Tokens, mapped: Callable[[], Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "KEEP_RESIDENT", keep)
    monkeypatch.setattr(mmap, "mmap", CountedMap)
    monkeypatch.setattr(CountedMap, "given_back", 0)
    assert torch.equal(draws(BatchSampler(mapped(), 16, seed=1), 5), draws(BatchSampler(tokens, 16, seed=1), 5))
    assert CountedMap.given_back == times


def test_a_batch_is_a_copy_that_training_may_write_to(mapped: Callable[[], Tokens], tokens: Tokens) -> None:
    inputs, targets = BatchSampler(mapped(), 16, seed=1).get_batch(2)
    inputs.zero_()
    targets.zero_()
    assert np.array_equal(mapped(), tokens)


def shuffled(length: int = 1000, block_size: int = 16) -> ShuffledSampler:
    """Of tokens that count from 0 on, so that each tells its place."""
    return ShuffledSampler(np.arange(length), block_size, seed=3)


def epochs(sampler: ShuffledSampler, count: int) -> list[list[int]]:
    """Where the windows of the next epochs begin."""
    found: list[list[int]] = [[] for _ in range(count)]
    while sampler.epoch < count:
        found[sampler.epoch].append(int(sampler.get_batch(1)[0][0, 0]))
    return found


@pytest.mark.parametrize(("length", "block_size"), [(1000, 16), (50, 49), (51, 49), (33, 8), (18, 16), (2, 1)])
def test_an_epoch_holds_every_block_once(length: int, block_size: int) -> None:
    for starts in epochs(shuffled(length, block_size), 4):
        ordered = sorted(starts)
        assert ordered == list(range(ordered[0], length - block_size, block_size))
        assert ordered[0] < block_size


def test_every_epoch_has_an_order_and_an_offset_of_its_own() -> None:
    found = epochs(shuffled(), 20)
    assert all(starts != sorted(starts) for starts in found)
    orders = [tuple((start - min(starts)) // 16 for start in starts) for starts in found]
    assert len(set(orders)) == 20
    assert len({min(starts) for starts in found}) > 8


@pytest.mark.parametrize("batch_size", [2, 7, 62, 63, 500])
def test_batches_of_any_size_take_the_same_order(batch_size: int) -> None:
    sampler, one_by_one = shuffled(), shuffled()
    inputs, targets = sampler.get_batch(batch_size)
    assert torch.equal(inputs[:, 0], sampler.starts)
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, draws(one_by_one, batch_size, 1)[:, 0, 0])
    assert sampler.state_dict() == one_by_one.state_dict()


def test_a_shuffled_order_continues_from_a_saved_state_and_goes_by_the_seed(tokens: Tokens) -> None:
    sampler = build_sampler("shuffled", tokens, 16, 1)
    draws(sampler, 30)
    state = sampler.state_dict()
    expected = draws(sampler, 30)
    resumed = build_sampler("shuffled", tokens, 16, 2)
    assert not torch.equal(draws(resumed, 30), expected)
    resumed.load_state_dict(state)
    assert torch.equal(draws(resumed, 30), expected)


@pytest.mark.parametrize(("saved", "loaded"), [("random", "shuffled"), ("shuffled", "random")])
def test_a_state_of_another_order_is_refused(saved: str, loaded: str, tokens: Tokens) -> None:
    state = build_sampler(saved, tokens, 16, 1).state_dict()
    with pytest.raises(ValueError, match=r"had another data\.order"):
        build_sampler(loaded, tokens, 16, 1).load_state_dict(state)


def test_a_position_outside_the_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="its position is 61, and an epoch has 61 blocks"):
        shuffled().load_state_dict({"seed": 3, "epoch": 0, "position": 61})


def test_the_order_takes_no_memory() -> None:
    class Endless:
        """As many tokens as no disk holds; each is its place, modulo 2^31."""

        def __len__(self) -> int:
            return 2**50

        def __getitem__(self, places: np.ndarray) -> np.ndarray:
            return places % 2**31

    sampler = ShuffledSampler(Endless(), 256, seed=0)  # type: ignore[arg-type]
    assert len(np.unique(draws(sampler, 20, 64)[:, 0, :, 0])) > 1270
