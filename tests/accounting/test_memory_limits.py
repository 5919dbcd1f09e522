from pathlib import Path

import pytest
import torch

from gpt.accounting import memory_limits
from gpt.accounting.memory_limits import model_bytes, training_bytes
from gpt.config import Config, ModelConfig, OptimConfig, TrainConfig
from gpt.device import Compute, available_bytes, require_memory
from gpt.errors import DeviceError
from gpt.model import GPT
from gpt.training.fitting import predict_memory

CPU = torch.device("cpu")
SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 256, "block_size": 64, "vocab_size": 65}
LLAMA = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "n_kv_head": 2, "tie_weights": False}
either = pytest.mark.parametrize("changes", [{}, LLAMA], ids=["gpt", "llama"])


@either
def test_weights_are_counted_without_building_a_model(changes: dict[str, object]) -> None:
    config = ModelConfig(**(SIZES | changes))
    held = sum(parameter.nbytes for parameter in GPT(config).parameters())
    counted = model_bytes(config) - config.n_layer * memory_limits.BLOCK_BYTES
    assert 0.99 * held < counted <= held


@either
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recomputing", [False, True])
def test_a_training_step_needs_more_than_the_least(
    changes: dict[str, object], optimizer: str, dtype: torch.dtype, recomputing: bool
) -> None:
    """A bound above what a step takes would refuse what works; one far below would refuse nothing."""
    compute = Compute(CPU, dtype)
    train = TrainConfig(batch_size=32, activation_checkpointing=recomputing)
    config = Config(model=ModelConfig(**(SIZES | changes)), train=train, optim=OptimConfig(name=optimizer))
    least = training_bytes(config, compute)
    peak = predict_memory(config, 32, config.model.block_size, compute).peak
    assert peak / 6 < least < peak


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    available = available_bytes(CPU)
    assert available is None or 1 << 26 < available < 1 << 50
    monkeypatch.setattr("gpt.device.available_bytes", lambda device: None)
    require_memory(1 << 80, "it", "something", CPU)
    monkeypatch.setattr("gpt.device.available_bytes", lambda device: 3 << 30)
    require_memory(3 << 30, "it", "something", CPU)
    with pytest.raises(
        DeviceError, match=r"^it needs at least 4.5 GiB of memory, and cpu has 3.0 GiB available; lower s"
    ):
        require_memory(9 << 29, "it", "something", CPU)


@pytest.mark.parametrize(("container", "expected"), [("2048\n", 2048), ("max\n", 5 << 10), (None, 5 << 10)])
def test_swap_counts_and_a_container_may_have_less(
    container: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    3 kB\nSwapTotal:  4 kB\nSwapFree:  2 kB\n"}
    files |= {} if container is None else {"/sys/fs/cgroup/memory.max": container}

    def read_text(path: Path, encoding: str) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert available_bytes(CPU) == expected


def test_a_cuda_device_has_what_is_free_and_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert available_bytes(torch.device("cuda")) == 130
