"""Call the compiled kernels of `src/training/training.cpp` with tensors."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gpt.environment import Settings
from gpt.errors import DeviceError
from gpt.kernels.build import load_library
from gpt.processor import Processor, supported_processors
from gpt.progress import Report, silent


@dataclass(frozen=True)
class Arguments:
    """A structure of `training.cpp`: first pointers, then floats, then unsigned and signed 32-bit integers.

    Attributes:
        pointers: names of pointers; those ending in `*` point to activations of the kernels' type, others to float32.
        floats: names of floats.
        unsigned: names of unsigned integers.
        integers: names of signed integers.
    """

    pointers: str
    floats: str = ""
    unsigned: str = ""
    integers: str = ""

    @cached_property
    def structure(self) -> type[ctypes.Structure]:
        """Return the ctypes structure with C's layout."""
        kinds = {ctypes.c_float: self.floats, ctypes.c_uint32: self.unsigned, ctypes.c_int32: self.integers}
        pointers = [(name.rstrip("*"), ctypes.c_void_p) for name in self.pointers.split()]
        numbers = [(name, kind) for kind, names in kinds.items() for name in names.split()]
        return type("CArguments", (ctypes.Structure,), {"_fields_": [*pointers, *numbers]})

    def is_element(self, name: str) -> bool:
        """Return whether a pointer points to activations."""
        return f"{name}*" in self.pointers.split()


_ATTENTION = Arguments(
    "qkv* q_gain k_gain cosine sine y* log_sums dy* dqkv* dq_gain dk_gain",
    "eps dropout",
    "seed",
    "batch length heads head_dim threads",
)
_ADD_NORM = Arguments(
    "x y* gain stream normed* mean inverse dstream dnormed* dx dy* dgain",
    "eps dropout",
    "seed",
    "rows width centered threads",
)
_ADD = Arguments("x y* out dy*", "dropout", "seed", "rows width threads")
_ACTIVATION = Arguments("x* y* dy* dx*", integers="kind rows width threads")
_SHORT_CONV = Arguments("h* weight y* dy* dh* dw", integers="batch length width taps threads")
_WEIGHT_GRADIENT = Arguments("x* dy* dw", integers="rows outputs inputs threads")

KERNELS = {
    "attention_forward": _ATTENTION,
    "attention_backward": _ATTENTION,
    "add_norm_forward": _ADD_NORM,
    "add_norm_backward": _ADD_NORM,
    "add_forward": _ADD,
    "add_backward": _ADD,
    "dropout": _ADD,
    "activation_forward": _ACTIVATION,
    "activation_backward": _ACTIVATION,
    "short_conv_forward": _SHORT_CONV,
    "short_conv_backward": _SHORT_CONV,
    "weight_gradient": _WEIGHT_GRADIENT,
}
"""Arguments of each kernel; the last exists for bfloat16 only, since torch's own matmuls are fast in float32."""


class Kernels:
    """The compiled kernels for one processor class and one type of activations.

    Args:
        dtype: type of the matmuls' inputs: float32, or bfloat16, for which not every processor has instructions.
        settings: say where the library is kept, and for which processor it is.
        report: receives a line when something is compiled.
        processors: candidates, the best first; None: those of this machine.

    Attributes:
        dtype: as above.
        processor: the class in use.

    Raises:
        DeviceError: none of the processors has instructions for this type, or the library cannot be compiled.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        settings: Settings,
        report: Report = silent,
        processors: Sequence[Processor] | None = None,
    ) -> None:
        self.dtype = dtype
        candidates = supported_processors(settings.processor) if processors is None else processors
        for self.processor in candidates:
            if self.processor.matmul_dtype == dtype:
                self._library = _load(self.processor, settings, report)
                if self._library.gpt_request_matmul() == 0:
                    return
        raise DeviceError(f"this processor ({candidates[0].name}) has no instructions for {str(dtype)[6:]}")

    def call(self, name: str, **values: Tensor | float | None) -> None:
        """Call a kernel of `KERNELS` with torch's number of threads; omitted tensors become null pointers.

        Raises:
            DeviceError: there is not enough memory.
        """
        kind = KERNELS[name]
        arguments = kind.structure(threads=torch.get_num_threads())
        for field, value in values.items():
            address = self._address(value, kind.is_element(field)) if isinstance(value, Tensor) else value
            setattr(arguments, field, address)
        if getattr(self._library, f"gpt_{name}")(ctypes.byref(arguments)):
            raise DeviceError(f"not enough memory for the scratch of {name}; take a smaller train.batch_size")

    def _address(self, tensor: Tensor, is_element: bool) -> int:
        assert tensor.is_contiguous()
        assert tensor.dtype == (self.dtype if is_element else torch.float32)
        assert tensor.device.type == "cpu"
        return tensor.data_ptr()


def _load(processor: Processor, settings: Settings, report: Report) -> ctypes.CDLL:
    return load_library("training/training.cpp", processor, settings.cache_dir, report)
