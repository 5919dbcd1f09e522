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


def test_modules_parameters_and_places() -> None:
    operations = {op.function: op for op in recorded(Small(), torch.ones(2, 3))}
    assert operations["linear"].module == "inner"
    assert operations["linear"].parameters == ("inner.weight", "inner.bias")
    assert operations["linear"].flops == 2 * 2 * 3 * 4
    assert operations["mul"].module == ""
    assert operations["mul"].parameters == ("gain",)
    assert operations["mul"].flops == 0
    assert operations["mul"].caller == "Small.forward"
    file, line = operations["mul"].source.split(":")
    assert file == "test_recorder.py"
    assert 10 < int(line) < 40


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
def test_a_view_is_what_shares_memory(work: object, function: str, device: str) -> None:
    class Work(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert callable(work)
            return work(x)

    plain = torch.ones(2, 3)
    assert callable(work)
    shares = work(plain).untyped_storage().data_ptr() == plain.untyped_storage().data_ptr()
    x = torch.ones(2, 3, device=device)
    operations = recorded(Work(), x)
    last = operations[-1]
    if function.endswith("_"):  # an in-place result is its own input, and no tensor of its own
        assert [op.function for op in operations] == ["input"]
    else:
        assert last.function == function
        assert last.is_view is shares


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


@pytest.mark.parametrize("fails", [False, True])
def test_no_hook_is_left(fails: bool) -> None:
    class Wrapped(Small):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if fails:
                raise ZeroDivisionError
            return y

    module = Wrapped()
    if fails:
        with pytest.raises(ZeroDivisionError):
            recorded(module, torch.ones(2, 3))
    else:
        recorded(module, torch.ones(2, 3))
    assert not has_hooks(module)


def test_the_module_is_known_again_after_an_error_inside_another() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Failing()

        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(ZeroDivisionError):
                self.inner(x)
            return x + 1

    assert recorded(Careful(), torch.ones(2))[-1].module == ""
