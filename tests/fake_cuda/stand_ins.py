"""What `torch.cuda` says and does where a CPU-only torch has nothing of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

CPUGenerator = torch.Generator
MEMORY = 80 << 30
PROPERTIES = SimpleNamespace(
    name="Fake CUDA", total_memory=MEMORY, multi_processor_count=100, major=9, minor=0, warp_size=32
)


class Stream:
    """Of no work."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: "Stream") -> None:
        """It has no work to wait for."""


class Event(Stream):
    """At no time."""

    def record(self, *_: Any) -> None:
        """Nothing came before it."""


class Graph:
    """Holds no launches; `replays` counts."""

    replays = 0

    def replay(self) -> None:
        """Nothing is launched."""
        Graph.replays += 1


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
    """Replace them for the rest of the process."""
    state = torch.zeros(16, dtype=torch.uint8)

    @contextmanager
    def capture(*_: Any, **__: Any) -> Iterator[None]:
        with device.refusing(waits=True):  # a capture fails where the device is waited for
            yield

    @contextmanager
    def stream(_: Stream) -> Iterator[None]:
        yield

    replaced = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
        "synchronize": lambda device_=None: device.wait("synchronize"),
        "max_memory_allocated": lambda device=None: 1 << 20,
        "memory_allocated": lambda device=None: 1 << 20,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=0: state.clone(),
        "get_rng_state_all": lambda: [state.clone()],
        "set_rng_state": lambda state, device=0: None,
        "set_rng_state_all": lambda states: None,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "current_stream": lambda device=None: Stream(),
        "stream": stream,
        "graph": capture,
    }
    for name, value in replaced.items():
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
