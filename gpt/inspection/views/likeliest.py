"""The most likely tokens of a distribution."""

from torch import Tensor

Alternative = tuple[int, float]
"""A token id and its probability."""


def likeliest(probabilities: Tensor, count: int) -> list[list[Alternative]]:
    """Return the most likely tokens of each row, the most likely first.

    Args:
        probabilities: (N, V).
        count: how many of each; all of them where there are fewer.
    """
    values, ids = probabilities.topk(min(count, probabilities.size(-1)))
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
