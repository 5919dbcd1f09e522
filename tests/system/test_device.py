from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

import pytest
import torch

from gpt.config import RunConfig
from gpt.system import device
from gpt.system.device import (
    available_bytes,
    choose_compute,
    choose_device,
    require_memory,
    setup_process,
)
from gpt.system.environment import Launch
from gpt.system.errors import DeviceError
from gpt.system.processor import AMX, AVX2, PROCESSORS

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")
TF32 = device.Compute(CUDA, torch.float32, torch.bfloat16)


def choose(launch: Launch = Launch(), **values: object) -> device.Compute:  # noqa: B008  # frozen
    """Choose a device as a training does, and set up the process for it."""
    run = RunConfig.model_validate(values)
    compute = choose_compute(run.device, run.dtype, lambda line: None, None, launch)
    setup_process(run.threads, compute.device, launch)
    return compute


def test_device_that_is_missing_is_refused_and_auto_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    for name, message in (
        ("cuda", "sees 0 CUDA devices; use device auto or cpu"),
        ("gpu", "expected auto, cpu, cuda, cuda:N or mps; did you mean cuda"),
    ):
        with pytest.raises(DeviceError, match=message):
            choose_device(name)


def test_auto_dtype_has_instructions_and_others_are_called_slow() -> None:
    lines: list[str] = []
    for processor in PROCESSORS.values():
        compute = choose_compute("cpu", "auto", lines.append, processor)
        assert compute.dtype == compute.fast_dtype == processor.matmul_dtype
    choose_compute("cpu", "bfloat16", lines.append, AMX)
    assert lines == []
    compute = choose_compute("cpu", "bfloat16", lines.append, AVX2)
    assert (compute.dtype, compute.fast_dtype) == (torch.bfloat16, torch.float32)
    assert lines == ["bfloat16 is slower than float32 on this processor (AVX2)"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_type_that_is_asked_for_is_taken_and_named(dtype: torch.dtype) -> None:
    compute = choose(device="cpu", dtype=str(dtype).removeprefix("torch."))
    assert str(compute).endswith(str(dtype).removeprefix("torch."))
    with compute.autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == compute.dtype == dtype


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """The numbers of threads that were set."""
    found: list[int] = []
    with (
        patch("torch.set_num_threads", found.append),
        patch("os.sched_getaffinity", lambda process: set(range(6)), create=True),
    ):
        yield found


def test_processes_of_a_machine_share_its_cores(threads: list[int]) -> None:
    choose(Launch(0, 2, 0, 2), device="cpu")
    choose(Launch(0, 8, 0, 8), device="cpu")
    choose(Launch(0, 2, 0, 2), device="cpu", threads=5)
    choose(Launch(0, 2, 0, 1), device="cpu")  # alone on its machine
    assert threads == [3, 1, 5]


@pytest.fixture
def capabilities(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Those of two CUDA devices, which a test may change.

    This torch is built for 8.0, 9.0 and, as PTX, 12.0.
    """
    of_devices = [(8, 0), (8, 0)]
    current = [0]

    @contextmanager
    def on(place: torch.device) -> Iterator[None]:
        current.append(place.index or 0)
        yield
        current.pop()

    def has_bfloat16(including_emulation: bool) -> bool:
        return of_devices[current[-1]] >= (8, 0)

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "device": on,
        "is_bf16_supported": has_bfloat16,
        "get_device_capability": lambda place: of_devices[place.index or 0],
        "get_device_name": lambda place: f"Card {place.index or 0}",
        "get_arch_list": lambda: ["sm_80", "sm_90a", "compute_120"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return of_devices


def test_a_cuda_device_has_its_own_type_and_kernels(capabilities: list[tuple[int, int]]) -> None:
    capabilities[:] = [(8, 0), (7, 5)]
    assert choose(device="cuda").dtype == torch.bfloat16
    message = (
        r"^device cuda:1: torch .* is built for sm_80, sm_90a, compute_120, and Card 1 is "
        r"sm_75; use device cpu"
    )
    with pytest.raises(DeviceError, match=message):
        choose(device="cuda:1")
    capabilities[:] = [(7, 5), (12, 1)]
    with pytest.raises(DeviceError, match=r"^device cuda: .* Card 0 is sm_75"):
        choose_device("auto")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with patch("torch.cuda.get_arch_list", lambda: ["sm_70", "sm_80"]):
        capabilities[:] = [(8, 0), (7, 5)]
        assert choose(device="cuda").dtype == torch.bfloat16
        assert choose(device="cuda:1").dtype == torch.float16
    with patch("torch.cuda.get_arch_list", lambda: ["gfx942"]):
        assert choose_device("auto") == torch.device("cuda")


@pytest.mark.usefixtures("threads", "capabilities")
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_has_the_cuda_device_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose(Launch(3, 4, 1, 2), device=name).device == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]
    with pytest.raises(DeviceError, match=r"device cuda:2: torch .* sees 2 CUDA devices"):
        choose(Launch(2, 4, 2, 4), device=name)
    with pytest.raises(
        DeviceError,
        match=r"^run\.device is cuda:0, but each of 2 processes needs its own; use cuda",
    ):
        choose(Launch(0, 2, 0, 2), device="cuda:0")


@pytest.fixture
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_precision")
@pytest.mark.parametrize(
    ("compute", "within", "name"),
    [
        (TF32, "high", "cuda:0, float32 (TF32 matmuls)"),
        (device.Compute(CUDA, torch.bfloat16, torch.bfloat16), "highest", "cuda:0, bfloat16"),
        (device.Compute(CUDA, torch.float32, torch.float32), "highest", "cuda:0, float32"),
        (device.Compute(CPU, torch.float32, torch.bfloat16), "highest", "cpu, 1 threads, float32"),
    ],
)
def test_tf32_is_for_float32_training_on_cuda_and_is_restored(
    compute: device.Compute, within: str, name: str
) -> None:
    assert str(compute) == name
    with suppress(KeyError), compute.allow_tf32():
        assert torch.get_float32_matmul_precision() == within
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    available = available_bytes(CPU)
    assert available is None or 1 << 26 < available < 1 << 50
    monkeypatch.setattr("gpt.system.device.available_bytes", lambda device: None)
    require_memory(1 << 80, "it", "something", CPU)
    monkeypatch.setattr("gpt.system.device.available_bytes", lambda device: 3 << 30)
    require_memory(3 << 30, "it", "something", CPU)
    message = r"^it needs at least 4.5 GiB of memory, and cpu has 3.0 GiB available; lower s"
    with pytest.raises(DeviceError, match=message):
        require_memory(9 << 29, "it", "something", CPU)
