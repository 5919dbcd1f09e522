from collections.abc import Iterator

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gpt.evaluation.loss import IGNORE, Batch
from gpt.evaluation.windows import full_batches, sliding_batches


def counted(batches: Iterator[Batch]) -> list[tuple[int, int]]:
    """Target and length of context of every prediction that counts, where each token is its own place."""
    found = []
    for inputs, targets in batches:
        for row_inputs, row_targets in zip(inputs.tolist(), targets.tolist(), strict=True):
            for column, target in enumerate(row_targets):
                if target != IGNORE:
                    assert row_inputs[column] == target - 1
                    found.append((target, column + 1))
    return found


@given(length=st.integers(2, 90), block_size=st.integers(1, 20), batch_size=st.integers(1, 7))
def test_full_predicts_every_token_once_and_in_order(length: int, block_size: int, batch_size: int) -> None:
    batches = list(full_batches(np.arange(length), block_size, batch_size))
    assert [target for target, _ in counted(iter(batches))] == list(range(1, length))
    assert all(inputs.shape[0] <= batch_size and inputs.shape[1] <= block_size for inputs, _ in batches)
    assert all(inputs.shape == targets.shape for inputs, targets in batches)


@given(
    length=st.integers(2, 90),
    block_size=st.integers(1, 20),
    batch_size=st.integers(1, 7),
    share=st.floats(0, 1),
)
@example(length=50, block_size=8, batch_size=3, share=0.0)
def test_sliding_predicts_every_token_once_with_the_context_that_the_stride_leaves(
    length: int, block_size: int, batch_size: int, share: float
) -> None:
    stride = max(1, round(share * block_size))
    found = counted(sliding_batches(np.arange(length), block_size, batch_size, stride))
    assert [target for target, _ in found] == list(range(1, length))
    assert all(min(target, block_size - stride + 1) <= context <= block_size for target, context in found)
    if stride == 1:
        assert [context for _, context in found] == [min(target, block_size) for target, _ in found]
