"""Call the compiled kernels of `src/training/training.cpp` with tensors."""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_void_p

import torch
from torch import Tensor

from gpt.environment import Settings
from gpt.errors import DeviceError
from gpt.kernels.build import load_library
from gpt.kernels.contract import check_facts, fields, pointer
from gpt.processor import Processor, supported_processors
from gpt.progress import Report, silent


class Activations(c_void_p):
    """Points to activations of the kernels' type; other pointers point to float32."""


class AttentionArguments(ctypes.Structure):
    _fields_ = fields(
        (Activations, "qkv y dy dqkv"),
        (c_void_p, "q_gain k_gain cosine sine log_sums dq_gain dk_gain"),
        (c_float, "eps dropout"),
        (c_uint32, "seed"),
        (c_int32, "batch length heads head_dim threads"),
    )


class AddNormArguments(ctypes.Structure):
    _fields_ = fields(
        (Activations, "y normed dnormed dy"),
        (c_void_p, "x gain stream mean inverse dstream dx dgain"),
        (c_float, "eps dropout"),
        (c_uint32, "seed"),
        (c_int32, "rows width centered threads"),
    )


class AddArguments(ctypes.Structure):
    _fields_ = fields(
        (Activations, "y dy"),
        (c_void_p, "x out"),
        (c_float, "dropout"),
        (c_uint32, "seed"),
        (c_int32, "rows width threads"),
    )


class ActivationArguments(ctypes.Structure):
    _fields_ = fields((Activations, "x y dy dx"), (c_int32, "kind rows width threads"))


class ShortConvArguments(ctypes.Structure):
    _fields_ = fields((Activations, "h y dy dh"), (c_void_p, "weight dw"), (c_int32, "batch length width taps threads"))


class WeightGradientArguments(ctypes.Structure):
    _fields_ = fields((Activations, "x dy"), (c_void_p, "dw"), (c_int32, "rows outputs inputs threads"))


class MatmulArguments(ctypes.Structure):
    _fields_ = fields(
        (c_void_p, "a b c"),
        (c_int32, "rows columns depth a_row a_column b_row b_column threads"),
    )


KERNELS: dict[str, type[ctypes.Structure]] = {
    "attention_forward": AttentionArguments,
    "attention_backward": AttentionArguments,
    "add_norm_forward": AddNormArguments,
    "add_norm_backward": AddNormArguments,
    "add_forward": AddArguments,
    "add_backward": AddArguments,
    "dropout": AddArguments,
    "activation_forward": ActivationArguments,
    "activation_backward": ActivationArguments,
    "short_conv_forward": ShortConvArguments,
    "short_conv_backward": ShortConvArguments,
    "weight_gradient": WeightGradientArguments,
    "matmul": MatmulArguments,
}
"""Arguments of each kernel; `weight_gradient` exists for bfloat16 only, and `matmul` for float32 only."""


class Kernels:
    """The compiled kernels for one processor class and one type of activations.

    Args:
        dtype: type of the matmuls' inputs: float32, or bfloat16, for which not every processor has instructions.
        settings: say where the library is kept, and for which processor it is.
        report: receives a line when something is compiled.
        processors: candidates, the best first; None: those of this machine. `processor` is the one in use.

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
                self._library = load_library("training/training.cpp", self.processor, settings.cache_dir, report)
                check_facts(self._library, *KERNELS.values())
                if self._library.gpt_request_matmul() == 0:
                    return
        raise DeviceError(f"this processor ({candidates[0].name}) has no instructions for {str(dtype)[6:]}")

    def call(self, name: str, **values: Tensor | float | None) -> None:
        """Call a kernel of `KERNELS` with torch's number of threads; omitted tensors become null pointers.

        Raises:
            DeviceError: there is not enough memory.
        """
        structure = KERNELS[name]
        arguments = structure(threads=torch.get_num_threads())
        kinds = {name: kind for name, kind, *_ in structure._fields_}
        for field, value in values.items():
            if isinstance(value, Tensor):
                value = pointer(value, self.dtype if kinds[field] is Activations else torch.float32).value
            setattr(arguments, field, value)
        if getattr(self._library, f"gpt_{name}")(ctypes.byref(arguments)):
            raise DeviceError(f"not enough memory for the scratch of {name}; take a smaller train.batch_size")
