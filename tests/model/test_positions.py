import math

import pytest
import torch
from torch import Tensor

from gpt.model import GPT
from gpt.model.positions import Rotary, Rotation, SinusoidalPositions, build_position, rotate
from tiny import tiny_config

WIDTHS_AND_BASES = [(2, 10000.0), (8, 10000.0), (32, 500.0)]


@pytest.mark.parametrize(("width", "theta"), WIDTHS_AND_BASES)
def test_sinusoidal_table_is_the_formula_written_out(width: int, theta: float) -> None:
    table = SinusoidalPositions(50, width, theta).table
    assert table.shape == (50, width)
    for position in range(50):
        for pair in range(width // 2):
            angle = position / theta ** (2 * pair / width)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=3e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=3e-6)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_each_token_gets_the_row_of_its_position(position: str) -> None:
    added, x = build_position(tiny_config(position=position)), torch.randn(2, 3, 32)
    (rows,) = (*added.parameters(), *added.buffers())
    assert rows.shape == (16, 32)
    torch.nn.init.normal_(rows)
    assert torch.equal(added(x, torch.tensor([4, 0, 15])), x + torch.stack((rows[4], rows[0], rows[15])))
    per_row = added(x, torch.tensor([[0, 1, 2], [7, 7, 5]]))
    assert torch.equal(per_row[0], x[0] + rows[:3])
    assert torch.equal(per_row[1], x[1] + torch.stack((rows[7], rows[7], rows[5])))


def turned_as_complex_numbers(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """(B, H, T, D) with column i as real and column i + D/2 as imaginary part, times e^(i angle)."""
    half = x.size(-1) // 2
    frequencies = torch.tensor([theta ** (-2 * i / x.size(-1)) for i in range(half)], dtype=torch.float64)
    angles = positions.double().unsqueeze(-1) * frequencies  # (T, D/2) or (B, T, D/2)
    turn = torch.polar(torch.ones_like(angles), angles)
    turn = turn.unsqueeze(1) if positions.dim() == 2 else turn
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    return torch.cat((turned.real, turned.imag), dim=-1).float()


def rotate_both(q: Tensor, k: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    return rotate(q, rotation), rotate(k, rotation)


@pytest.mark.parametrize(("width", "theta"), WIDTHS_AND_BASES)
@pytest.mark.parametrize("positions", [torch.arange(6), torch.tensor([[0, 1, 2, 3, 4, 5], [9, 0, 0, 47, 3, 2]])])
def test_rotary_multiplies_by_complex_numbers(width: int, theta: float, positions: Tensor) -> None:
    q, k = torch.randn(2, 4, 6, width), torch.randn(2, 2, 6, width)
    turned = rotate_both(q, k, Rotary(48, width, theta)(positions))
    for actual, x in zip(turned, (q, k), strict=True):
        torch.testing.assert_close(actual, turned_as_complex_numbers(x, positions, theta), rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_positions_keep_the_type_of_what_they_are_applied_to(dtype: torch.dtype) -> None:
    x, heads, positions = torch.randn(2, 3, 8, dtype=dtype), torch.randn(2, 4, 3, 8, dtype=dtype), torch.arange(3)
    assert SinusoidalPositions(16, 8, 10000.0)(x, positions).dtype == dtype
    assert {turned.dtype for turned in rotate_both(heads, heads, Rotary(16, 8, 10000.0)(positions))} == {dtype}


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
def test_a_model_knows_the_order_of_its_tokens(position: str) -> None:
    """Without positions, the last logits would not change when two earlier tokens change places."""
    model = GPT(tiny_config(position=position)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    one, other = model(torch.tensor([[3, 5, 7, 9]]))[0, -1], model(torch.tensor([[5, 3, 7, 9]]))[0, -1]
    assert (one - other).abs().max() > 1e-3
