"""Record every operation of a real forward pass that leads to its result, in order."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
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
    parameters: tuple[str, ...]  # names of the parameters it reads
    inputs: tuple[int, ...]  # indices of the recorded operations whose tensors it reads


class Recorder(TorchFunctionMode):
    """Records torch's operations inside the context `recording()`, and counts their FLOPs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._operations: list[Operation] = []  # all so far, in order
        # The number of the operation that made or wrote a tensor last. The tensors are compared by
        # identity, and recording keeps none of them alive.
        self._made_by = WeakIdKeyDictionary()
        self._modules: list[str] = [""]  # paths of the modules that run now, the innermost last
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._counter = FlopCounterMode(display=False)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations inside this context, with the module that each runs in."""
        hooks = []
        for name, module in self._model.named_modules():
            hooks.append(module.register_forward_pre_hook(partial(self._enter, name)))
            # always: after an error, the next module would be recorded inside of this one
            hooks.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self._counter, self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str, *_: object) -> None:
        self._modules.append(name)

    def _leave(self, *_: object) -> None:
        self._modules.pop()

    def begin_with(self, tensor: Tensor, function: str) -> None:
        """Record a tensor from outside as the first one."""
        self._add(function, "GPT.forward", tensor, inputs=[], flops=0)

    def leading_to(self, result: Tensor) -> list[Operation]:
        """Return the operations that `result` was computed by, in order, with its own as the last.

        Their `inputs` are indices in this list.
        """
        needed: set[int] = set()
        waiting = [self._made_by[result]]
        while waiting:
            number = waiting.pop()
            if number not in needed:
                needed.add(number)
                waiting.extend(self._operations[number].inputs)
        kept = sorted(needed)
        new_numbers = {number: new_number for new_number, number in enumerate(kept)}
        operations = []
        for number in kept:
            operation = self._operations[number]
            inputs = tuple(new_numbers[source] for source in operation.inputs)
            operations.append(replace(operation, inputs=inputs))
        return operations

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        flops_before = self._counter.get_total_flops()
        result = func(*args, **kwargs)
        flops = self._counter.get_total_flops() - flops_before
        inputs = list(_tensors([args, kwargs]))
        name = getattr(func, "__name__", str(func)).strip("_")
        if name == "setitem":  # returns nothing: it writes into its first argument
            made = [args[0]]
        else:
            # An operation without anything to do, such as `to` the same type, returns its input.
            made = [x for x in _tensors(result) if not any(x is y for y in inputs)]
        if made:
            self._add(name, _caller(), made[0], inputs, flops)
            # Several tensors are parts of one, as those of `chunk`: the first stands for all.
            for tensor in made[1:]:
                self._made_by[tensor] = len(self._operations) - 1
        return result

    def _add(self, name: str, caller: str, made: Tensor, inputs: list[Tensor], flops: int) -> None:
        """Record an operation by the tensor that it made and the tensors that it read."""
        self._operations.append(
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
        self._made_by[made] = len(self._operations) - 1


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _memory(x: Tensor) -> int:
    """Return the address of the C++ object of a tensor's memory, which is the same in its views."""
    return x.untyped_storage()._cdata


def _caller() -> str:
    """Return the qualified name of the nearest function outside of torch and of this file."""
    frame = sys._getframe(2)  # of the caller of `__torch_function__`
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    return frame.f_code.co_qualname
