"""Call the compiled kernels of `src/training/training.cpp` with tensors."""

import ctypes
from ctypes import c_float, c_int32, c_uint32, c_void_p

import torch
from torch import Tensor

from gpt.native.build import find_library, load_usable, open_library
from gpt.native.contract import check_facts, fields, pointer
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.processor import Processor, supported_processors
from gpt.system.progress import Report, silent


class Activations(c_void_p):
    """A pointer to activations of the kernels' type; all other pointers are to float32."""


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


class WeightGradientArguments(ctypes.Structure):
    _fields_ = fields(
        (Activations, "x dy"), (c_void_p, "dw"), (c_int32, "rows outputs inputs threads")
    )


class MatmulArguments(ctypes.Structure):
    _fields_ = fields(
        (c_void_p, "a b c"),
        (c_int32, "rows columns depth a_row a_column b_row b_column threads"),
    )


SOURCE = "training/training.cpp"
"""Path of the library's source below `src`."""
KERNELS: dict[str, type[ctypes.Structure]] = {
    "attention_forward": AttentionArguments,
    "attention_backward": AttentionArguments,
    "add_norm_forward": AddNormArguments,
    "add_norm_backward": AddNormArguments,
    "add_forward": AddArguments,
    "dropout": AddArguments,
    "activation_forward": ActivationArguments,
    "activation_backward": ActivationArguments,
    "weight_gradient": WeightGradientArguments,
    "matmul": MatmulArguments,
}
"""The arguments of each kernel.

`weight_gradient` exists for bfloat16 only, where torch would round the gradient, and `matmul` for
float32 only.
"""


class Kernels:
    """The compiled kernels for one class of processors.

    Their activations have the type that the class multiplies fastest.
    """

    def __init__(self, library: ctypes.CDLL, processor: Processor) -> None:
        # The structures must have the sizes that the library was compiled with.
        check_facts(library, *KERNELS.values())
        self._library = library
        self.processor = processor
        self.dtype = processor.matmul_dtype
        # Linux lets a process use the AMX tile unit only after it has asked; 0 means granted.
        if library.gpt_request_matmul():
            raise DeviceError("the system does not grant the AMX tiles")

    def call(self, name: str, **values: Tensor | float | None) -> None:
        """Call a kernel of `KERNELS` with torch's number of threads.

        Args:
            values: the fields of the kernel's structure. Tensors that are omitted or None become
                null pointers, which say that the kernel is not to read or write them.
        """
        structure = KERNELS[name]
        # The kernels share torch's threads, of which the user may have changed the number.
        arguments = structure(threads=torch.get_num_threads())
        kinds = {field: kind for field, kind, *_ in structure._fields_}
        for field, value in values.items():
            if isinstance(value, Tensor):
                # `pointer` refuses a tensor of another type than the kernel reads.
                dtype = self.dtype if kinds[field] is Activations else torch.float32
                setattr(arguments, field, pointer(value, dtype).value)
            else:
                setattr(arguments, field, value)
        kernel = getattr(self._library, f"gpt_{name}")
        is_out_of_memory = kernel(ctypes.byref(arguments))
        if is_out_of_memory:
            raise DeviceError(
                f"not enough memory for the scratch of {name}; take a smaller train.batch_size"
            )


def load_kernels(
    dtype: torch.dtype,
    settings: Settings,
    report: Report = silent,
    processor: Processor | None = None,
) -> Kernels:
    """Load the kernels whose activations have a given type.

    Args:
        dtype: float32, or bfloat16, for which not every processor has instructions. It chooses the
            class only where `processor` is None.
        processor: the class whose library is loaded, without a trial, with the type of that class.
            None means the best class of this machine whose library passes its trial in a process of
            its own.

    Raises:
        DeviceError: no class of this machine has the type, or no library can be used.
    """
    if processor is not None:
        library = open_library(find_library(SOURCE, processor, settings.cache_dir, report))
        return Kernels(library, processor)
    supported = supported_processors(settings.processor)
    candidates = [each for each in supported if each.matmul_dtype == dtype]
    if not candidates:
        dtype_name = str(dtype).removeprefix("torch.")
        raise DeviceError(
            f"this processor ({supported[0].name}) has no instructions for {dtype_name}"
        )
    library, chosen = load_usable(SOURCE, candidates, settings, report)
    return Kernels(library, chosen)
