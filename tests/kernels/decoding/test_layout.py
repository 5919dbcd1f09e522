"""Weights in the engine's layout."""

import pytest
import torch

from gpt.kernels.decoding.weights import Matrix


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_are_laid_out_so_that_they_can_be_read_back(bits: int) -> None:
    integers = torch.randint(-7, 8, (70, 12), dtype=torch.int8)
    matrix = Matrix.from_integers(integers, torch.rand(70, 3), bits=bits)
    assert (matrix.outputs, matrix.inputs, matrix.group) == (70, 12, 4)
    blocks = matrix.weights
    if bits == 4:
        blocks = torch.stack((blocks << 4 >> 4, blocks >> 4), dim=2).flatten(1, 2)
    assert torch.equal(blocks.transpose(1, 2).flatten(0, 1)[:70], integers)
    assert (blocks.transpose(1, 2).flatten(0, 1)[70:] == 0).all()
