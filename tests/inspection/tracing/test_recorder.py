from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.inspection.tracing.recorder import Operation, Recorder
from inspection.variants import has_hooks


class Small(nn.Module):
    """One of each: a view, a copy, a parameter, a write, a no-op, a dead end."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        store = torch.zeros(2, 4)
        _ = x.sum()  # leads nowhere
        y = self.inner(x).contiguous() * self.gain
        first, _ = y.chunk(2)
        store[:1] = first
        return store.t().reshape(2, 2, 2)


def recorded(module: nn.Module, x: Tensor) -> list[Operation]:
    recorder = Recorder(module)
    recorder.begin_with(x, "input")
    with torch.no_grad(), recorder.recording():
        result = module(x)
    return recorder.leading_to(result)


def test_what_leads_to_the_result_in_order() -> None:
    operations = recorded(Small(), torch.ones(2, 3))
    assert [op.function for op in operations] == [
        "input", "zeros", "linear", "mul", "chunk", "setitem", "t", "reshape",
    ]  # fmt: skip
    assert [op.inputs for op in operations] == [(), (), (0,), (2,), (3,), (1, 4), (5,), (6,)]
    assert [op.result for op in operations][-3:] == [(2, 4), (4, 2), (2, 2, 2)]


def test_modules_and_parameters() -> None:
    operations = {op.function: op for op in recorded(Small(), torch.ones(2, 3))}
    assert operations["linear"].module == "inner"
    assert operations["linear"].parameters == ("inner.weight", "inner.bias")
    assert operations["linear"].flops == 2 * 2 * 3 * 4
    assert operations["mul"].module == ""
    assert operations["mul"].parameters == ("gain",)
    assert operations["mul"].flops == 0
    assert operations["mul"].caller == "Small.forward"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("work", "function"),
    [
        (lambda x: x.view(6), "view"),
        (lambda x: x.transpose(0, 1), "transpose"),
        (lambda x: x.t().reshape(6), "reshape"),  # has to copy
        (lambda x: x.reshape(6), "reshape"),
        (lambda x: x[:1], "getitem"),
        (lambda x: x[[0, 1]], "getitem"),
        (lambda x: x + 1, "add"),
        (lambda x: x.relu_(), "relu_"),
        (lambda x: x.chunk(2)[1], "chunk"),
        (lambda x: x.expand(5, 2, 3), "expand"),
        (lambda x: F.relu(x), "relu"),
    ],
)
def test_a_view_is_what_shares_memory(work: Callable[[Tensor], Tensor], function: str, device: str) -> None:
    class Work(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return work(x)

    plain = torch.ones(2, 3)
    shares = work(plain).untyped_storage().data_ptr() == plain.untyped_storage().data_ptr()
    operations = recorded(Work(), torch.ones(2, 3, device=device))
    if function.endswith("_"):  # an in-place result is its own input, and no tensor of its own
        assert [op.function for op in operations] == ["input"]
    else:
        assert (operations[-1].function, operations[-1].is_view) == (function, shares)


def test_types_and_bytes() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.bfloat16) > 0).expand(4, 2, 3).long()

    rows = [(op.function, op.dtype, op.nbytes) for op in recorded(Half(), torch.ones(2, 3))]
    assert rows == [
        ("input", "float32", 24),
        ("to", "bfloat16", 12),
        ("gt", "bool", 6),
        ("expand", "bool", 24),
        ("long", "int64", 192),
    ]


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError


def test_no_hook_is_left_not_even_by_an_error() -> None:
    works, fails = Small(), nn.Sequential(nn.Linear(3, 3), Failing())
    recorded(works, torch.ones(2, 3))
    with pytest.raises(ZeroDivisionError):
        recorded(fails, torch.ones(2, 3))
    assert not has_hooks(works)
    assert not has_hooks(fails)


def test_the_module_is_known_again_after_an_error_inside_another() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Failing()

        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(ZeroDivisionError):
                self.inner(x)
            return x + 1

    assert recorded(Careful(), torch.ones(2))[-1].module == ""
