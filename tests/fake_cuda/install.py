"""What stands in where a CPU-only torch has nothing for a CUDA device, or looks for the data of its tensors."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from fake_cuda.device import FakeCuda

PROPERTIES = SimpleNamespace(
    name="Fake CUDA", total_memory=80 << 30, multi_processor_count=100, major=9, minor=0, warp_size=32
)
GENERATOR_STATE = torch.zeros(16, dtype=torch.uint8)

FACTS = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_properties": lambda device=None: PROPERTIES,
    "get_device_name": lambda device=None: PROPERTIES.name,
    "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
    "max_memory_allocated": lambda device=None: 1 << 20,
    "mem_get_info": lambda device=None: (100 << 30, 140 << 30),
    "memory_reserved": lambda device=None: 1 << 20,
    "memory_allocated": lambda device=None: 1 << 20,
    "get_rng_state": lambda device=0: GENERATOR_STATE.clone(),
    "get_rng_state_all": lambda: [GENERATOR_STATE.clone()],
}
NOTHING = (
    *("_lazy_init", "init", "empty_cache", "reset_peak_memory_stats"),
    *("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"),
)
"""Functions that do nothing."""


def stand_ins(device: FakeCuda) -> dict[str, Any]:
    """By name in `torch.cuda`."""

    def synchronize(_: Any = None) -> None:
        device.wait("synchronize")

    nothing = {name: lambda *_, **__: None for name in NOTHING}
    return {**FACTS, **nothing, "synchronize": synchronize}


CPUGenerator = torch.Generator


class Generator(torch.Generator):
    """torch.Generator, which is the CPU's for the device too."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        return CPUGenerator.__new__(CPUGenerator)


def move(module: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`nn.Module._apply` with parameters made anew, since a fake tensor cannot take the place of a real one's data."""
    moved: dict[Tensor, nn.Parameter] = {}  # a tied weight stays one
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if parameter not in moved:
                    moved[parameter] = nn.Parameter(convert(parameter.detach()), parameter.requires_grad)
                part._parameters[name] = moved[parameter]
        for name, buffer in part._buffers.items():
            part._buffers[name] = convert(buffer) if buffer is not None else None
    return module


def _from_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors' numbers: it gets copies on the CPU, as torch's own makes them."""

    def call(content: Any, *arguments: Any, **options: Any) -> Any:
        return function(tree_map_only(Tensor, Tensor.cpu, content), *arguments, **options)

    return call


def pin(tensor: Tensor) -> Tensor:
    """A copy that is known to be one in pinned memory."""
    copy = tensor.clone()
    copy.is_pinned_here = True  # type: ignore[attr-defined]
    return copy


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` by CUDA's flash kernel where torch would take it.

    A torch without CUDA knows the kernel's shapes, and would still choose the written-out form, which turns half
    precision into float32.
    """
    if q.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        q, k, v = (x.to(torch.get_autocast_dtype("cuda")) for x in (q, k, v))
    if q.device.type == "cuda" and q.dtype != torch.float32 and attn_mask is None:
        groups = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    return written_out(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


written_out = F.scaled_dot_product_attention


def install(device: FakeCuda) -> None:
    """Put them in place, for the rest of the process."""
    for name, value in stand_ins(device).items():
        mock.patch.object(torch.cuda, name, value).start()
    mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False).start()
    mock.patch.object(torch, "Generator", Generator).start()
    mock.patch.object(F, "scaled_dot_product_attention", attend).start()
    for module in (torch, safetensors.torch):
        mock.patch.object(module, "save", _from_host(module.save)).start()
    mock.patch.object(FakeTensor, "tolist", lambda tensor: tensor.cpu().tolist()).start()
    mock.patch.object(Tensor, "pin_memory", pin).start()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor then makes them on the CPU, and moves them
    mock.patch.object(nn.Module, "_apply", move).start()
