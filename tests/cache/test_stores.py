import pytest
import torch
from torch import Tensor

from gpt.cache.stores import KV_DTYPES, Store

CAPACITY = 8
FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_HALF = 2.0**-24


def vectors(positions: int) -> Tensor:
    """(B, K, T, D), of magnitudes from 0.01 to 100."""
    x = torch.randn(2, 2, positions, 8)
    return x * 10 ** torch.linspace(-2, 2, positions).view(1, 1, -1, 1)


def kept(x: Tensor, kv_dtype: str = "int8", dtype: torch.dtype = torch.float32) -> Tensor:
    """Vectors (B, K, T, D) after they were stored and read."""
    store = Store((2, x.size(0), x.size(1), CAPACITY, x.size(3)), kv_dtype, torch.device("cpu"))
    store.write(0, 0, x + 1)
    store.write(1, 0, x)
    return store.read(1, x.size(2), dtype)


@pytest.mark.parametrize(("kv_dtype", "dtype"), FLOATS.items())
def test_floats_come_back_rounded_to_their_type_and_in_it_without_a_copy(kv_dtype: str, dtype: torch.dtype) -> None:
    x = vectors(6)
    assert torch.equal(kept(x, kv_dtype), x.to(dtype).float())
    store = Store((1, 2, 2, CAPACITY, 8), kv_dtype, torch.device("cpu"))
    whole = store.read(0, CAPACITY, dtype)
    store.write(0, 2, torch.ones(2, 2, 1, 8))
    assert (whole[:, :, 2] == 1).all()


def test_int8_is_within_half_a_step_of_each_vectors_largest_magnitude() -> None:
    x = vectors(6)
    x[:, :, 3] = 0
    steps = x.abs().amax(dim=-1, keepdim=True) / 127
    error = (kept(x) - x).abs()
    assert (error <= steps * (0.5 + 127 * 2.0**-11)).all()  # the scale itself is rounded to half precision
    assert (error > 0).any()


@pytest.mark.parametrize("largest", [1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
def test_int8_is_off_by_a_few_millionths_at_most_where_scales_have_few_digits(largest: float) -> None:
    x = largest * (2 * torch.rand(1, 2, CAPACITY, 8) - 1)
    assert (kept(x) - x).abs().max() <= 127 * SMALLEST_HALF / 2 + x.abs().max() / 127 / 2


@pytest.mark.parametrize("sign", [1, -1])
def test_int8_keeps_vectors_up_to_127_times_the_largest_half(sign: int) -> None:
    x = torch.full((1, 2, 1, 8), sign * 65504.0 * 127)
    torch.testing.assert_close(kept(x), x, rtol=1e-3, atol=0)


@pytest.mark.parametrize(("kv_dtype", "value"), [("int8", 65536.0 * 127), ("int8", 1e30), ("fp16", 1e5)])
def test_a_number_too_large_for_the_type_comes_back_as_not_finite_and_never_as_another(
    kv_dtype: str, value: float
) -> None:
    x = vectors(4)
    x[0, 1, 2, 3] = value
    back = kept(x, kv_dtype)
    assert not back[0, 1, 2, 3].isfinite()
    assert back[:, :, [0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_reading_gives_the_type_that_is_asked_for(kv_dtype: str, dtype: torch.dtype) -> None:
    x = vectors(3)
    back = kept(x, kv_dtype, dtype)
    assert back.dtype == dtype
    torch.testing.assert_close(back.float(), x, rtol=0.01, atol=x.abs().max().item() / 127)
