"""What a batch holds, and whose randomness it uses."""

import mmap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt.data import BatchSampler, batches
from gpt.data.dataset import Tokens

Batch = tuple[torch.Tensor, torch.Tensor]


def draws(sampler: BatchSampler, count: int = 5, batch_size: int = 3) -> torch.Tensor:
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


@pytest.mark.parametrize(("keep", "times"), [(0, 5), (999, 5), (1000, 0), (batches.KEEP_RESIDENT, 0)])
def test_only_a_large_file_gives_its_pages_back_and_batches_are_the_same(
    keep: int, times: int, tokens: Tokens, mapped: Callable[[], Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "KEEP_RESIDENT", keep)
    monkeypatch.setattr(mmap, "mmap", CountedMap)
    monkeypatch.setattr(CountedMap, "given_back", 0)
    assert torch.equal(draws(BatchSampler(mapped(), 16, seed=1), 5), draws(BatchSampler(tokens, 16, seed=1), 5))
    assert CountedMap.given_back == times


def test_a_batch_is_a_copy_that_training_may_write_to(mapped: Callable[[], Tokens], tokens: Tokens) -> None:
    inputs, targets = BatchSampler(mapped(), 16, seed=1).get_batch(2)
    inputs.zero_()
    targets.zero_()
    assert np.array_equal(mapped(), tokens)
