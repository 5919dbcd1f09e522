"""Every operation on vectors against torch in float64, for every back end that this machine can
run.

The plain back end runs at the width of each of the others, so that what is built on `simd.h` is
tested at all widths on any processor. Each is compiled with every compiler that is there, for they
make instructions of it in their own way.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from native_support import PROCESSORS_HERE, needs_compiler
from torch import Tensor

from gpt.native.build import SOURCES, Compiler, find_compilers, find_library, open_library
from gpt.system.environment import read_settings
from gpt.system.processor import Processor

pytestmark = needs_compiler

WIDTHS = {"AMX": 16, "AVX-512 bf16": 16, "AVX-512": 16, "AVX2": 8, "NEON": 4}
NAN = float("nan")
INF = float("inf")
COUNT = 4096
UNFUSED = 8e-8
"""Growth of the relative error of e^x with |x| where x / ln 2 is rounded before its whole part is
taken off.
"""
# zig, which is clang, would compile a C++ library of its own for each class, a minute for each
CASES = [(p, c) for c in find_compilers() if not c.is_zig for p in PROCESSORS_HERE]


class Primitives:
    """The compiled operations."""

    def __init__(self, processor: Processor, compiler: Compiler) -> None:
        source = str(Path(__file__).parent / "primitives.cpp")
        cache = read_settings().cache_dir
        flags = ["-I", str(SOURCES)]
        self.library = open_library(
            find_library(source, processor, cache, flags=flags, compiler=compiler)
        )
        self.lanes: int = self.library.count_lanes()
        self.width = WIDTHS.get(processor.name)

    def __call__(self, name: str, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """Apply an operation to tensors of the same size, a multiple of 16."""
        result = torch.empty(inputs[0].shape) if out is None else out
        arrays = [ctypes.c_void_p(tensor.contiguous().data_ptr()) for tensor in (result, *inputs)]
        getattr(self.library, name)(*arrays, inputs[0].numel())
        return result


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].name}-{case[1].name}")
def apply(request: pytest.FixtureRequest) -> Primitives:
    return Primitives(*request.param)


def test_vectors_are_as_wide_as_registers_and_keep_every_bit(apply: Primitives) -> None:
    assert apply.lanes in (4, 8, 16)
    assert apply.width in (None, apply.lanes)
    expected = torch.arange(apply.lanes).float().repeat(COUNT // apply.lanes)
    assert torch.equal(apply("map_lanes", torch.rand(COUNT)), expected)
    bits = torch.randint(-(2**31), 2**31, (COUNT,), dtype=torch.int64).to(torch.int32)
    assert torch.equal(apply("map_copy", bits.view(torch.float32)).view(torch.int32), bits)


FUNCTIONS: list[tuple[str, Callable[[Tensor], Tensor], float, float, float, float]] = [
    ("exp", torch.exp, -87.0, 88.0, 3e-7, 0.0),
    ("tanh", torch.tanh, -20.0, 20.0, 3e-7, 3e-7),
    ("sigmoid", torch.sigmoid, -80.0, 80.0, 3e-7, 0.0),
    ("reciprocal", torch.reciprocal, 0.01, 1e6, 3e-7, 0.0),
    ("sqrt", torch.sqrt, 0.0, 1e6, 3e-7, 0.0),
    ("reciprocal", torch.reciprocal, -1e6, -0.01, 3e-7, 0.0),
    ("density", lambda x: torch.exp(-x * x / 2), -13.0, 13.0, 0.0, 3e-7),
    ("cdf", torch.special.ndtr, -6.0, 6.0, 0.0, 3e-7),
]


def test_functions_and_their_ends(apply: Primitives) -> None:
    growth = 0.0 if apply.width else UNFUSED
    for name, function, first, last, relative, absolute in FUNCTIONS:
        x = torch.linspace(first, last, COUNT)
        y = apply(f"map_{name}", x).double()
        expected = function(x.double())
        bound = absolute + expected.abs() * (relative + growth * x.abs() * (relative > 0))
        assert ((y - expected).abs() <= bound).all(), name
    beyond = torch.tensor([-INF, -1e30, -100.0, -88.0, 100.0, 1e30, INF, 0.0]).repeat(2)
    ends = beyond.clamp(-87, 88).double().exp()
    torch.testing.assert_close(
        apply("map_exp", beyond).double(), ends, rtol=3e-7 + 88 * growth, atol=0
    )
    assert apply("map_exp", torch.full((16,), NAN)).isnan().all()


def test_operations_on_two_vectors(apply: Primitives) -> None:
    a = torch.randn(COUNT)
    b = torch.randn(COUNT)
    nan = torch.full((COUNT,), NAN)
    exact = (a.double() * b.double() + a.double()).float()
    result = apply("map2_fma", a, b)
    assert ((result == exact) | (result == a * b + a)).all()
    assert apply.width is None or torch.equal(result, exact)  # a back end of its own rounds once
    torch.testing.assert_close(apply("map2_multiply_add", a, b), 3 * a + b, rtol=1e-6, atol=1e-6)
    assert torch.equal(apply("map2_select", a, b), torch.where(a < b, a, b * 2))
    for name, function in (("max", torch.maximum), ("min", torch.minimum)):
        assert torch.equal(apply(f"map2_{name}", a, b), function(a, b))
        assert apply(f"map2_{name}", a, nan).isnan().all()


def test_whole_numbers_are_the_nearest(apply: Primitives) -> None:
    if not hasattr(apply.library, "map_round"):
        pytest.skip("numbers are rounded for tiles, which no processor has beside these vectors")
    x = torch.linspace(-512, 511.75, COUNT)  # in quarters
    assert torch.equal(apply("map_round", x), x.round())


def test_one_number_of_each_vector(apply: Primitives) -> None:
    vectors = torch.randn(COUNT).view(-1, apply.lanes)
    count = len(vectors)
    sums = apply("map_reduce_add", vectors).flatten()[:count]
    torch.testing.assert_close(sums.double(), vectors.double().sum(dim=1), rtol=1e-5, atol=1e-5)
    whole = torch.randint(-1000, 1000, vectors.shape).float()
    # every lane, each once
    assert torch.equal(apply("map_reduce_add", whole).flatten()[:count], whole.sum(dim=1))
    for x in (vectors, torch.full_like(vectors, -INF)):
        assert torch.equal(apply("map_reduce_max", x).flatten()[:count], x.amax(dim=1))


def test_bfloat16_is_rounded_as_torch_does(apply: Primitives) -> None:
    bits = torch.arange(0, 2**32, 65537 * 3)[: 2**14].to(torch.int32)  # all exponents, and ties
    ties = (torch.arange(2**15) * 65536 + 0x8000).to(torch.int32)
    for x in (
        bits.view(torch.float32),
        ties.view(torch.float32),
        torch.tensor([0.0, -0.0, INF, -INF] * 4),
    ):
        # AVX-512 makes the others zero
        is_number = ~x.isnan()
        is_normal = (x.abs() >= 2.0**-126) | (x == 0)
        stored = apply("store_bf16", x, out=torch.empty(x.shape, dtype=torch.bfloat16))
        kept = is_number & is_normal
        assert torch.equal(stored[kept].view(torch.int16), x.bfloat16()[kept].view(torch.int16))
        assert stored[~is_number].isnan().all()
        assert (stored[~is_normal & is_number].float().abs() <= 2.0**-126).all()


def test_every_bfloat16_and_small_integer_is_read_exactly(apply: Primitives) -> None:
    every = torch.arange(2**16).to(torch.int16)
    assert torch.equal(apply("load_bf16", every).view(torch.int32), every.to(torch.int32) << 16)
    every = torch.arange(-128, 128).to(torch.int8)
    assert torch.equal(apply("load_int8", every), every.float())
    upper, lower = apply("load_int4s", every, out=torch.empty(512)).split(256)
    assert torch.equal(upper, (every >> 4).float())
    assert torch.equal(lower, ((every << 4) >> 4).float())
