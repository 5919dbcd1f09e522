import pytest
import torch

from gpt.inspection.views.likeliest import likeliest


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_the_first_of_each_row(count: int) -> None:
    rows = likeliest(torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.125, 0.375]]), count)
    assert rows == [[(1, 0.75), (0, 0.25), (2, 0.0)][:count], [(0, 0.5), (2, 0.375), (1, 0.125)][:count]]
