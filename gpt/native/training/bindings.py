"""The structures of `src/training`, and calls of its library with tensors."""

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from gpt.native.build import find_library, load_usable, open_library
from gpt.native.contract import check_facts, fields, floats
from gpt.system.device import require_memory
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.processor import Processor, supported_processors
from gpt.system.progress import Report, silent


class CBlockTensors(ctypes.Structure):
    _fields_ = fields(
        (c_void_p, "ln_1 c_q c_k c_v q_norm k_norm c_proj ln_2 c_gate c_fc mlp_c_proj"),
        (c_void_p, "ln_1_bias c_q_bias c_k_bias c_v_bias c_proj_bias"),
        (c_void_p, "ln_2_bias c_gate_bias c_fc_bias mlp_c_proj_bias"),
    )


class CModelTensors(ctypes.Structure):
    _fields_ = fields((c_void_p, "wte wpe ln_f ln_f_bias lm_head blocks"))


class CTrainedModel(ctypes.Structure):
    _fields_ = fields(
        (CModelTensors, "weights gradients"),
        (c_void_p, "added cosine sine"),
        (c_float, "norm_eps dropout weights_dropout"),
        (c_int32, "layers heads width hidden vocab block_size is_layer_norm activation"),
    )


class CMicroBatch(ctypes.Structure):
    _fields_ = fields(
        (c_void_p, "inputs targets teacher seeds later_weights logits"),
        (c_float, "scale temperature teacher_weight z_weight"),
        (c_int32, "later batch length adds"),
    )


class CLossSums(ctypes.Structure):
    _fields_ = fields((c_double, "cross_entropy z_loss"))


class CUpdatedTensor(ctypes.Structure):
    _fields_ = fields(
        (c_void_p, "weight gradient first_moment second_moment"),
        (c_int64, "count"),
        (c_int32, "rows columns is_matrix steps"),
        (c_float, "rate decay beta_1 beta_2 eps correction_1 correction_2"),
    )


SOURCE = "training/training.cpp"
"""Path of the library's source below `src`."""
STRUCTURES = (
    CBlockTensors,
    CModelTensors,
    CTrainedModel,
    CMicroBatch,
    CLossSums,
    CUpdatedTensor,
)


class Kernels:
    """The compiled training library for one class of processors.

    Activations have the type that the class multiplies fastest; the residual stream, parameters,
    and gradients are float32. Each method uses as many threads as torch does at that time.
    """

    def __init__(self, library: ctypes.CDLL, processor: Processor) -> None:
        # C++ would read and write the wrong memory if the structures here had other sizes.
        check_facts(library, *STRUCTURES)
        self._library = library
        for name in ("gpt_gradients_bytes", "gpt_update_bytes"):
            getattr(library, name).restype = c_int64
        for name in ("gpt_gradients", "gpt_scale", "gpt_update"):
            getattr(library, name).restype = None
        library.gpt_norm.restype = c_double
        self.processor = processor
        self.dtype = processor.matmul_dtype
        # Linux lets a process use the tiles of Intel AMX only after it has asked; 0 means granted.
        if library.gpt_request_matmul():
            raise DeviceError("the system does not grant the AMX tiles")
        # The memory for the intermediate results of each method is kept for its next call.
        self._memory = {"gradients": torch.empty(0), "update": torch.empty(0)}

    def gradients(self, model: CTrainedModel, batch: CMicroBatch) -> CLossSums:
        """Compute the losses of a batch and the gradients of the model's parameters.

        The gradients are written to the addresses in `model`. If `batch` has an address for logits,
        only logits are computed.

        Raises:
            DeviceError: there is not enough memory.
        """
        arguments = (ctypes.byref(model), ctypes.byref(batch), torch.get_num_threads())
        num_bytes = self._library.gpt_gradients_bytes(*arguments)
        losses = CLossSums()
        memory = self._reserve("gradients", num_bytes)
        self._library.gpt_gradients(*arguments, memory, ctypes.byref(losses))
        return losses

    def norm(self, numbers: Tensor) -> float:
        """Return the root of the sum of squares of float32 numbers (N,)."""
        count = c_int64(numbers.numel())
        # C++ writes one sum for each piece of the numbers, so that threads can share the pieces.
        sums = torch.empty(self._library.gpt_pieces(count), dtype=torch.float64)
        threads = torch.get_num_threads()
        norm: float = self._library.gpt_norm(
            floats(numbers), count, threads, c_void_p(sums.data_ptr())
        )
        return norm

    def scale(self, numbers: Tensor, factor: float) -> None:
        """Multiply float32 numbers (N,) in place."""
        count = c_int64(numbers.numel())
        threads = torch.get_num_threads()
        # C reads the factor by its address.
        factor_in_c = (c_float * 1)(factor)
        self._library.gpt_scale(floats(numbers), count, threads, factor_in_c)

    def update(self, tensors: ctypes.Array[CUpdatedTensor]) -> None:
        """Update parameters, each by its optimizer."""
        arguments = (tensors, len(tensors), torch.get_num_threads())
        memory = self._reserve("update", self._library.gpt_update_bytes(*arguments))
        self._library.gpt_update(*arguments, memory)

    def _reserve(self, name: str, num_bytes: int) -> c_void_p:
        """Return the address of the memory for "gradients" or "update"; enlarge it if needed."""
        memory = self._memory[name]
        if memory.nbytes < num_bytes:
            # The smaller memory is freed first, so that there need not be room for both.
            self._memory[name] = torch.empty(0)
            del memory
            remedy = "train.batch_size"  # what the message tells the user to lower
            require_memory(num_bytes, "a training step", remedy, torch.device("cpu"))
            memory = torch.empty(num_bytes, dtype=torch.uint8)
            self._memory[name] = memory
        return c_void_p(memory.data_ptr())


def load_kernels(
    dtype: torch.dtype,
    settings: Settings,
    report: Report = silent,
    processor: Processor | None = None,
) -> Kernels:
    """Load the kernels whose activations have a given type.

    Args:
        dtype: float32, or bfloat16, for which not every processor has instructions. It is only read
            if `processor` is None.
        processor: the class whose library is loaded, without a trial; its activations have the type
            of that class. None means the best class of this machine that has the type, and whose
            library passes its trial in a process of its own.

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
