"""Several files of tokens are read as one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.data import tokens as tokens_module
from gpt.data.batches import BatchSampler, ShuffledSampler
from gpt.data.tokens import TokenShards, in_pieces, join_shards
from gpt.training.loss import sliding_batches

WHOLE = np.random.default_rng(0).integers(0, 60_000, 1000).astype(np.uint16)
ENDS = st.none() | st.integers(-1100, 1100)
SHARDS = [WHOLE[:1], WHOLE[1:400], WHOLE[400:401], WHOLE[401:]]


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_part_is_that_of_the_whole(begin: int, end: int) -> None:
    part = join_shards(SHARDS, begin, max(begin, end))
    np.testing.assert_array_equal(np.asarray(part), WHOLE[begin:end])
    assert len(part) == len(WHOLE[begin:end])
    assert part.dtype == WHOLE.dtype
    assert all(len(shard) for shard in part.shards) if isinstance(part, TokenShards) else True


@given(st.builds(slice, ENDS, ENDS, st.sampled_from([None, 1])), st.lists(st.integers(0, 999), min_size=1))
def test_slices_are_views_and_indices_give_arrays(key: slice, indices: list[int]) -> None:
    tokens = TokenShards(SHARDS)
    np.testing.assert_array_equal(np.asarray(tokens[key]), WHOLE[key])
    places = np.array(indices).reshape(1, -1, 1)
    np.testing.assert_array_equal(tokens[places], WHOLE[places])
    assert tokens[places].dtype == WHOLE.dtype
    assert np.shares_memory(np.asarray(join_shards(SHARDS, 1, 400)), WHOLE)


def test_training_and_evaluation_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TokenShards(SHARDS)
    for sampler in (BatchSampler, ShuffledSampler):
        ours, theirs = (sampler(text, 16, 3) for text in (tokens, WHOLE))
        for _ in range(20):
            for one, other in zip(ours.get_batch(7), theirs.get_batch(7), strict=True):
                assert torch.equal(one, other)
    for one, other in zip(sliding_batches(tokens, 16, 3, 5), sliding_batches(WHOLE, 16, 3, 5), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    monkeypatch.setattr(tokens_module, "PIECE", 150)
    assert np.concatenate(list(in_pieces(tokens))).tolist() == WHOLE.tolist()
