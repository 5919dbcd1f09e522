"""What the functions and classes of `torch.cuda` are on a device that does nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

import recorded_graph
from fake_cuda.device import FakeCuda
from recorded_graph import RecordedGraph

PROPERTIES = SimpleNamespace(
    name="Fake CUDA", total_memory=80 << 30, multi_processor_count=100, major=9, minor=0, warp_size=32
)
GENERATOR_STATE = torch.zeros(16, dtype=torch.uint8)


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


@contextmanager
def on_stream(_: Stream) -> Iterator[None]:
    """Every stream is the same."""
    yield


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
CLASSES = {
    "Stream": Stream,
    "Event": Event,
    "CUDAGraph": RecordedGraph,
    "current_stream": lambda device=None: Stream(),
    "stream": on_stream,
}


def stand_ins(device: FakeCuda) -> dict[str, Any]:
    """By name in `torch.cuda`."""

    @contextmanager
    def capture(graph: RecordedGraph, **options: Any) -> Iterator[None]:
        with device.refusing(waits=True), recorded_graph.capture(graph, **options):  # it fails where it has to wait
            yield

    def synchronize(_: Any = None) -> None:
        device.wait("synchronize")

    nothing = {name: lambda *_, **__: None for name in NOTHING}
    return {**FACTS, **nothing, **CLASSES, "graph": capture, "synchronize": synchronize}
