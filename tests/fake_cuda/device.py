"""Two CUDA devices that have shapes and types but no numbers, beside a CPU that works as always.

Tensors on it are torch's fake tensors, which raise where operands are on different devices.
Whatever is read back is 1, be it a loss, a token or whether all is finite. On a real device that
waits for it, which is noted, or refused within `FakeCuda.refusing`.

Within `FakeCuda.computing` tensors have numbers too, in memory of the CPU. Graphs then do what
those of a device do: a capture runs nothing, and a replay runs what was captured on the memory that
it was captured with.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import gpt

PACKAGE = Path(gpt.__file__).parent
ANSWERS = {"NonFiniteGuard.check": -1, "require_equal": 0}
"""What a healthy device says to a reader, by its qualified name, where that is not 1."""

aten = torch.ops.aten
READS = (aten._local_scalar_dense, aten.is_nonzero, aten.equal)
COUNTS = (
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
)
"""Their result's shape depends on values, so that the device is waited for."""
MATMULS = (
    aten.mm,
    aten.bmm,
    aten.addmm,
    aten.baddbmm,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
)


class HiddenSync(AssertionError):
    """The device was waited for where it must not be."""


class Float32Matmul(AssertionError):
    """A matmul ran in float32 where autocast was meant."""


class FakeCuda(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The device, while it is entered.

    Attributes:
        waits: functions of the package that made the CPU wait, "" where none is on the stack, in
            order.
        pageable: functions that copied to it from memory that is not pinned, which may wait too.
        matmuls: type, place and torch's float32 precision of every matmul on the device, in order.
        streams: of every matmul, in order.
        graphs: that were captured, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forget()
        self._fake = FakeTensorMode()
        self._refuses_waits = self._refuses_float32 = self._computes = False
        self.usual = [Stream(0), Stream(1)]
        self.stream = self.usual[0]
        self.order = Order()
        self.captured: Graph | None = None

    def forget(self) -> None:
        """Begin the records anew."""
        self.waits: list[str] = []
        self.pageable: list[str] = []
        self.matmuls: list[tuple[torch.dtype, str, str]] = []
        self.streams: list[Stream] = []
        self.graphs: list[Graph] = []

    def queue(self, device: Any) -> "Stream":
        """The stream on which work of a device is queued now: the chosen one, or the usual one."""
        index = index_of(device)
        return self.stream if self.stream.device.index == index else self.usual[index]

    @contextmanager
    def refusing(self, waits: bool = True, float32: bool = False) -> Iterator[None]:
        """Within, waiting raises HiddenSync, and a float32 matmul Float32Matmul."""
        before = self._refuses_waits, self._refuses_float32
        self._refuses_waits = waits
        self._refuses_float32 = float32
        try:
            yield
        finally:
            self._refuses_waits, self._refuses_float32 = before

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within, tensors that are made on the device have numbers."""
        self._computes = True
        try:
            yield
        finally:
            self._computes = False

    def wait(self, what: str) -> None:
        """Note that the device is waited for, or raise HiddenSync where it must not be.

        In a capture that is an error of the device.
        """
        if self.captured is not None:
            raise torch.AcceleratorError(f"{what}: not permitted when a stream is captured")
        place = _place()
        if self._refuses_waits:
            raise HiddenSync(f"{what} in {place or 'torch'}")
        self.waits.append(place)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation on shapes alone, or on the host, and note what the device would do."""
        kwargs = kwargs or {}
        # In inference mode torch hands over whole operations; their parts come back here.
        if torch.is_inference_mode_enabled() and func.namespace == "aten" and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        target = kwargs.get("device")
        to_device = target is not None and torch.device(target).type == "cuda"
        if not to_device and not any(map(_is_on_device, tensors)):
            return func(*args, **kwargs)
        packet = func.overloadpacket
        is_moved = packet is aten._to_copy and target is not None and not to_device
        if packet in READS or is_moved or (packet is aten.copy_ and not _is_on_device(args[0])):
            return self._read(func, args, kwargs)
        self._note(packet, args, kwargs, tensors)
        if self.captured is not None:
            self.captured.add(
                packet, [tensor.device for tensor in tensors if _is_on_device(tensor)]
            )
        result = None
        if func is not aten._fused_adamw_.tensor_lr:  # it works in place, and torch has no shapes
            fake_args, fake_kwargs = tree_map_only(Tensor, self._as_fake, (args, kwargs))
            with self._fake:
                result = func(*fake_args, **fake_kwargs)
        if self._computes:
            self._compute(func, args, kwargs, result)
        return result

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what is read from the device, a number or a tensor on the CPU."""
        packet = func.overloadpacket
        self.wait("read" if packet in READS else "copy to host")
        if self._computes:
            return func(*_on_host(args), **kwargs)
        if packet in READS:
            return True if packet is aten.equal else ANSWERS.get(_place(), 1)
        if packet is aten.copy_:
            return args[0].fill_(1)
        return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Run an operation on the numbers, or record it; the results get their numbers."""
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)]
        call = Operation(func, args, kwargs)
        if func.is_view:  # which is no kernel
            outputs = call.run()
        elif self.captured is None:
            devices = [tensor.device for tensor in tree_leaves((args, result)) if _on(tensor)]
            outputs = self.order.run(call, self.queue(devices[0]))
        elif func._schema.is_mutable:
            self.captured.calls.append(call)
            return
        else:
            outputs = [_spoiled(tensor) for tensor in made]
            call.outputs = outputs
            self.captured.calls.append(call)
        for tensor, numbers in zip(made, outputs, strict=True):
            tensor.numbers = numbers  # type: ignore[attr-defined]

    def _note(
        self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> None:
        copies = packet in (aten._to_copy, aten.copy_) and not all(map(_is_on_device, tensors))
        non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
        if copies and not all(
            hasattr(tensor, "is_pinned_here") for tensor in tensors if not _is_on_device(tensor)
        ):
            self.pageable.append(_place())
        assert not (copies and self.captured), "a replay would copy what the host has then"
        if copies and not non_blocking:
            self.wait("blocking copy to device")
        masks = packet in (
            aten.index,
            aten.index_put,
            aten.index_put_,
            aten._index_put_impl_,
        ) and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in args[1]
        )
        if packet in COUNTS or masks:
            self.wait("size that depends on values")
        if packet in MATMULS:
            self.matmuls.append((tensors[0].dtype, _place(), torch.get_float32_matmul_precision()))
            self.streams.append(self.stream)
            if self._refuses_float32 and tensors[0].dtype == torch.float32:
                raise Float32Matmul(f"{packet} in {_place() or 'torch'}")

    def _as_fake(self, tensor: Tensor) -> Tensor:
        """A CPU tensor without its numbers; torch's own converter would keep a reference to it."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with self._fake:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


class Stream:
    """A stream of a device, by default of the current one.

    Attributes:
        length: number of operations that were queued on it.
        waited: how many of each other stream it has waited for.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("cuda", index_of(device))
        self.length = 0
        self.waited: dict[Stream, int] = {}

    def wait_stream(self, other: "Stream") -> None:
        """Wait for all that is queued on another stream of the same device."""
        assert self.device == other.device
        self.waited[other] = other.length


class Order:
    """Asserts that no stream uses what another one writes without waiting for it."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Stream, int]] = {}  # by address: where, and as which one

    def run(self, call: "Operation", stream: Stream) -> list[Tensor]:
        """Run an operation on numbers as the next one of a stream."""
        for tensor in call.inputs:
            writer, number = self._written.get(_address(tensor), (stream, 0))
            has_waited = writer is stream or stream.waited.get(writer, 0) >= number
            assert has_waited, "a stream uses what another one has not written yet"
        stream.length += 1
        result = call.run()
        for tensor in [*call.mutated, *call.outputs, *result]:
            self._written[_address(tensor)] = (stream, stream.length)
        return result


class Operation:
    """An operation on numbers.

    Attributes:
        inputs: tensors of the device that it reads.
        mutated: the one that it writes in place, if it does.
        outputs: where a replay writes the results.
    """

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, _on_host(args), _on_host(kwargs)
        if "device" in kwargs:
            self._kwargs = {**self._kwargs, "device": torch.device("cpu")}
        self.inputs = [leaf.numbers for leaf in tree_leaves((args, kwargs)) if _on(leaf)]
        self.mutated = self.inputs[:1] if func._schema.is_mutable else []
        self.outputs: list[Tensor] = []

    def run(self) -> list[Tensor]:
        """Return the results."""
        result = self._func(*self._args, **self._kwargs)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]

    def replay(self, order: Order, stream: Stream) -> None:
        """Write the results over those of the replay before, in the same memory."""
        for output, tensor in zip(self.outputs, order.run(self, stream), strict=False):
            output.copy_(tensor)


class Graph:
    """What was captured, which is on one device, and can be replayed unless that was nothing.

    Attributes:
        operations: all that were captured.
        calls: those on numbers.
        pool: graphs of one pool share the memory of their results, so that a replay of one spoils
            those of the others.
    """

    _replayed: ClassVar[dict[Any, "Graph"]] = {}  # the last one of each pool

    def __init__(self) -> None:
        self.operations: list[Any] = []
        self.calls: list[Operation] = []
        self.stream: Stream | None = None
        self.pool: Any = None
        self.device: FakeCuda | None = None

    def add(self, operation: Any, devices: list[torch.device]) -> None:
        """Record an operation.

        One on another device would run at once, and be missing in the graph.
        """
        assert self.stream is not None
        other = [device for device in devices if device != self.stream.device]
        assert not other, f"{operation} runs on {other[0]} while {self.stream.device} is captured"
        self.operations.append(operation)

    def replay(self) -> None:
        """Run what was captured."""
        assert self.operations, "an empty graph is replayed"
        before = Graph._replayed.get(self.pool, self)
        Graph._replayed[self.pool] = self
        if before is not self:
            for call in before.calls:
                for output in call.outputs:
                    output.copy_(_spoiled(output))
        assert self.device is not None
        assert self.stream is not None
        queue = self.device.queue(self.stream.device)
        for call in self.calls:
            call.replay(self.device.order, queue)


def index_of(device: Any) -> int:
    """The number of a device, which without one is the current one."""
    index = device if isinstance(device, int) or device is None else torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else int(index)


def exchange_device(index: int) -> int:
    """Make a device the current one unless it is negative; return the one before."""
    before = torch.accelerator.current_device_index()
    if index >= 0:
        torch.accelerator.set_device_index(index)
    return before


class OnDevice:
    """The stand-ins of `torch.cuda` for streams and graphs."""

    def __init__(self, device: FakeCuda) -> None:
        self._device = device

    @contextmanager
    def use_stream(self, stream: Stream) -> Iterator[None]:
        """Within, work is queued on a stream, whose device is the current one."""
        before = self._device.stream
        index = exchange_device(stream.device.index)
        self._device.stream = stream
        try:
            yield
        finally:
            self._device.stream = before
            exchange_device(index)

    def current_stream(self, device: Any = None) -> Stream:
        """The stream that work is queued on, or the usual one of another device."""
        return self._device.queue(device)

    @contextmanager
    def capture(
        self,
        graph: Graph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        """Within, work on the current device is captured."""
        graph.stream, graph.pool, graph.device = stream or Stream(), pool, self._device
        assert graph.stream.device.index == index_of(None), (
            "the graph is of another device than the current one"
        )
        assert capture_error_mode == "thread_local", (
            "another thread that allocates would end the capture"
        )
        with self.use_stream(graph.stream):
            self._device.captured = graph
            has_failed = True
            try:
                yield
                has_failed = False
            finally:
                self._device.captured = None
                if has_failed:  # torch closes the capture all the same, which is another error
                    raise torch.AcceleratorError("the capture is not valid")
        self._device.graphs.append(graph)


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _on(leaf: Any) -> bool:
    """Whether something is a tensor of the device."""
    return isinstance(leaf, Tensor) and _is_on_device(leaf)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _on_host(tree: Any) -> Any:
    """The numbers of all tensors of the device; those of the CPU as they are."""
    return tree_map_only(
        Tensor, lambda tensor: tensor.numbers if _is_on_device(tensor) else tensor, tree
    )


def _spoiled(like: Tensor) -> Tensor:
    """Numbers that nothing has computed, which are good for nothing."""
    size = (like.shape, like.stride())
    nonsense = torch.nan if like.dtype.is_floating_point else -7
    return torch.empty_strided(*size, dtype=like.dtype).fill_(nonsense)


def _place() -> str:
    """Qualified name of the nearest function of the package on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            return frame.f_code.co_qualname
        frame = frame.f_back
    return ""


PROPERTIES = SimpleNamespace(
    name="Fake CUDA",
    total_memory=80 << 30,
    multi_processor_count=100,
    major=9,
    minor=0,
    warp_size=32,
)
GENERATOR_STATE = torch.zeros(16, dtype=torch.uint8)

FACTS = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "device_count": lambda: 2,
    "current_device": lambda: index_of(None),
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": exchange_device,
    "set_device": lambda device: exchange_device(index_of(device)),
    "get_device_properties": lambda device=None: PROPERTIES,
    "get_device_name": lambda device=None: PROPERTIES.name,
    "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
    "max_memory_allocated": lambda device=None: 1 << 20,
    "mem_get_info": lambda device=None: (100 << 30, 140 << 30),
    "memory_reserved": lambda device=None: 1 << 20,
    "memory_allocated": lambda device=None: 1 << 20,
    "get_rng_state": lambda device=0: GENERATOR_STATE.clone(),
    "get_rng_state_all": lambda: [GENERATOR_STATE.clone()],
    "graph_pool_handle": object,
    "CUDAGraph": Graph,
    "Stream": Stream,
}
NOTHING = (
    "_lazy_init",
    "init",
    "empty_cache",
    "reset_peak_memory_stats",
    "manual_seed",
    "manual_seed_all",
    "set_rng_state",
    "set_rng_state_all",
)
"""Functions that do nothing."""
CPUGenerator = torch.Generator


class Generator(torch.Generator):
    """torch.Generator, which is the CPU's for the device too."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        return CPUGenerator.__new__(CPUGenerator)


def move(module: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`nn.Module._apply` with parameters made anew, since a fake tensor cannot take the place of a
    real one's data.
    """
    moved: dict[Tensor, nn.Parameter] = {}  # a tied weight stays one
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if parameter not in moved:
                    moved[parameter] = nn.Parameter(
                        convert(parameter.detach()), parameter.requires_grad
                    )
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


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`scaled_dot_product_attention` by CUDA's flash kernel where torch would take it.

    A torch without CUDA knows the kernel's shapes, and would still choose the written-out form,
    which turns half precision into float32.
    """
    if q.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        q, k, v = (x.to(torch.get_autocast_dtype("cuda")) for x in (q, k, v))
    if q.device.type != "cuda" or q.dtype == torch.float32 or options.get("attn_mask") is not None:
        return written_out(q, k, v, **options)
    k, v = (x.repeat_interleave(q.size(1) // k.size(1), dim=1) for x in (k, v))
    dropout = options.get("dropout_p", 0.0)
    is_causal = options.get("is_causal", False)
    return torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, dropout, is_causal, scale=options.get("scale")
    )[0]


written_out = F.scaled_dot_product_attention


def install(device: FakeCuda) -> None:
    """Put them in place, for the rest of the process."""
    nothing = {name: lambda *_, **__: None for name in NOTHING}
    queue = OnDevice(device)
    of_queue = {
        "stream": queue.use_stream,
        "current_stream": queue.current_stream,
        "graph": queue.capture,
    }
    waits = {"synchronize": lambda _=None: device.wait("synchronize")}
    for name, value in {**FACTS, **nothing, **of_queue, **waits}.items():
        mock.patch.object(torch.cuda, name, value).start()
    mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False).start()
    mock.patch.object(torch, "Generator", Generator).start()
    mock.patch.object(F, "scaled_dot_product_attention", attend).start()
    for module in (torch, safetensors.torch):
        mock.patch.object(module, "save", _from_host(module.save)).start()
    mock.patch.object(FakeTensor, "tolist", lambda tensor: tensor.cpu().tolist()).start()
    mock.patch.object(Tensor, "pin_memory", pin).start()
    # torch.tensor then makes them on the CPU, and moves them
    torch._C._set_only_lift_cpu_tensors(True)
    mock.patch.object(nn.Module, "_apply", move).start()
