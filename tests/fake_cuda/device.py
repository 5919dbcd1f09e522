"""A `cuda:0` that has shapes, types and devices but no numbers, beside a CPU that works as always.

Tensors on it are torch's fake tensors, which raise where operands are on different devices. Whatever is read back is
1, be it a loss, a token or whether all is finite. On a real device that waits for it, which is noted, or refused
within `FakeCuda.refusing`. What CUDA refuses under `torch.use_deterministic_algorithms` is refused here too.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import gpt
from fake_cuda.refusals import refuses

PACKAGE = Path(gpt.__file__).parent
ANSWERS = {"NonFiniteGuard.check": -1, "require_equal": 0}
"""What a healthy device says to a reader, by its qualified name, where that is not 1."""

aten = torch.ops.aten
READS = (aten._local_scalar_dense, aten.is_nonzero, aten.equal)
COUNTS = (aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount)
"""Their result's shape depends on values, so that the device is waited for."""
MATMULS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten._scaled_dot_product_flash_attention)
MATMULS += (aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_cudnn_attention)


class HiddenSync(AssertionError):
    """The device was waited for where it must not be."""


class Float32Matmul(AssertionError):
    """A matmul ran in float32 where autocast was meant."""


class FakeCuda(TorchDispatchMode):
    """The device, while it is entered.

    Attributes:
        waits: functions of the package that made the CPU wait, "" where none is on the stack, in order.
        pageable: functions that copied to it from memory that is not pinned, which may wait too.
        matmuls: type, place and torch's float32 precision of every matmul on the device, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.pageable: list[str] = []
        self.matmuls: list[tuple[torch.dtype, str, str]] = []
        self._fake = FakeTensorMode()
        self._refuses_waits = self._refuses_float32 = False

    @contextmanager
    def refusing(self, waits: bool = True, float32: bool = False) -> Iterator[None]:
        """Within, waiting raises HiddenSync, and a float32 matmul Float32Matmul."""
        before = self._refuses_waits, self._refuses_float32
        self._refuses_waits, self._refuses_float32 = waits, float32
        try:
            yield
        finally:
            self._refuses_waits, self._refuses_float32 = before

    def wait(self, what: str) -> None:
        """Note that the device is waited for, or raise HiddenSync where it must not be."""
        place = _place()
        if self._refuses_waits:
            raise HiddenSync(f"{what} in {place or 'torch'}")
        self.waits.append(place)

    def forget(self) -> None:
        """Begin the records anew."""
        for record in (self.waits, self.pageable, self.matmuls):
            record.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func.namespace == "aten" and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        target = kwargs.get("device")
        to_device = target is not None and torch.device(target).type == "cuda"
        if not to_device and not any(map(_is_on_device, tensors)):
            return func(*args, **kwargs)
        if torch.are_deterministic_algorithms_enabled() and refuses(func, args, kwargs):
            raise RuntimeError(f"{func} does not have a deterministic implementation in {_place()}")
        packet = func.overloadpacket
        if packet in READS:
            self.wait("read")
            return ANSWERS.get(_place(), 1) if packet is not aten.equal else True
        if packet is aten._to_copy and target is not None and not to_device:
            self.wait("copy to host")
            return torch.ones(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        if packet is aten.copy_ and not _is_on_device(args[0]):
            self.wait("copy to host")
            return args[0].fill_(1)
        self._note(packet, args, kwargs, tensors)
        args, kwargs = tree_map_only(Tensor, self._as_fake, (args, kwargs))
        with self._fake:
            return func(*args, **kwargs)

    def _note(self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
        copies = packet in (aten._to_copy, aten.copy_) and not all(map(_is_on_device, tensors))
        non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
        if copies and not all(hasattr(tensor, "is_pinned_here") for tensor in tensors if not _is_on_device(tensor)):
            self.pageable.append(_place())
        if copies and not non_blocking:
            self.wait("blocking copy to device")
        masks = packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_) and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if packet in COUNTS or masks:
            self.wait("size that depends on values")
        if packet in MATMULS:
            self.matmuls.append((tensors[0].dtype, _place(), torch.get_float32_matmul_precision()))
            if self._refuses_float32 and tensors[0].dtype == torch.float32:
                raise Float32Matmul(f"{packet} in {_place() or 'torch'}")

    def _as_fake(self, tensor: Tensor) -> Tensor:
        """A CPU tensor without its numbers; torch's own converter would keep a reference to it."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with self._fake:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _place() -> str:
    """Qualified name of the nearest function of the package on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            return frame.f_code.co_qualname
        frame = frame.f_back
    return ""
