"""Record every operation of a real forward pass that leads to its result, in order."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

TORCH = str(Path(torch.__file__).parent)


@dataclass
class Operation:
    """One call that created a tensor or wrote into one."""

    module: str  # path of the module it was called in, "" for the model itself
    function: str  # its name in torch
    caller: str  # qualified name of the Python function that called it
    result: tuple[int, ...]  # shape of the tensor
    dtype: str
    nbytes: int  # size of the tensor's elements
    is_view: bool  # whether it shares the memory of an input
    flops: int
    parameters: tuple[str, ...] = ()  # names of the parameters it reads
    inputs: tuple[int, ...] = ()  # indices of the recorded operations it reads from


@dataclass
class Recorder(TorchFunctionMode):
    """Records torch's operations inside the context `recording()`, and counts their FLOPs."""

    model: nn.Module
    # all so far, in order; `leading_to` selects those that lead to a tensor
    operations: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._made_by = WeakIdKeyDictionary()
        self._modules: list[str] = [""]
        self._names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self._counter = FlopCounterMode(display=False)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations inside this context, with the module that each runs in."""
        hooks = []
        for name, module in self.model.named_modules():
            hooks.append(
                module.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name))
            )
            hooks.append(
                module.register_forward_hook(lambda *_: _drop(self._modules), always_call=True)
            )
        try:
            with self._counter, self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def begin_with(self, tensor: Tensor, function: str) -> None:
        """Record a tensor from outside as the first one."""
        self._add(function, "GPT.forward", tensor, [], 0)

    def leading_to(self, result: Tensor) -> list[Operation]:
        """Return the operations that `result` was computed by, with its own last, and with inputs renumbered."""
        needed, waiting = set(), [self._made_by[result]]
        while waiting:
            number = waiting.pop()
            if number not in needed:
                needed.add(number)
                waiting.extend(self.operations[number].inputs)
        kept = sorted(needed)
        renumbered = {number: place for place, number in enumerate(kept)}
        for number in kept:
            operation = self.operations[number]
            operation.inputs = tuple(renumbered[source] for source in operation.inputs)
        return [self.operations[number] for number in kept]

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        before = self._counter.get_total_flops()
        result = func(*args, **(kwargs or {}))
        inputs = [x for x in _flat([args, kwargs or {}]) if isinstance(x, Tensor)]
        name = getattr(func, "__name__", str(func)).strip("_")
        made = (
            [args[0]]
            if name == "setitem"
            else [x for x in _flat([result]) if isinstance(x, Tensor)]
        )
        # no-ops return their input
        fresh = [x for x in made if name == "setitem" or not any(x is y for y in inputs)]
        if fresh:
            self._add(name, _caller(), fresh[0], inputs, self._counter.get_total_flops() - before)
            for tensor in fresh[1:]:  # parts, of one row
                self._made_by[tensor] = len(self.operations) - 1
        return result

    def _add(self, name: str, caller: str, made: Tensor, inputs: list[Tensor], flops: int) -> None:
        self.operations.append(
            Operation(
                module=self._modules[-1],
                function=name,
                caller=caller,
                result=tuple(made.shape),
                dtype=str(made.dtype).removeprefix("torch."),
                nbytes=made.nbytes,
                is_view=any(_memory(made) == _memory(x) for x in inputs),
                flops=flops,
                parameters=tuple(self._names[id(x)] for x in inputs if id(x) in self._names),
                inputs=tuple(self._made_by[x] for x in inputs if x in self._made_by),
            )
        )
        self._made_by[made] = len(self.operations) - 1


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        elif isinstance(value, dict):
            yield from _flat(value.values())
        else:
            yield value


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _drop(modules: list[str]) -> None:
    modules.pop()


def _caller() -> str:
    """Return the function of the nearest frame outside torch and this file."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    return frame.f_code.co_qualname
