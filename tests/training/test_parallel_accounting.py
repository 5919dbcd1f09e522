"""The predicted bytes of `gpt.accounting.parallel` against 64 processes, of which 63 are torch's fake ones."""

from collections.abc import Iterator

import pytest
import torch

from gpt.accounting.parallel import Method, parallel_step
from gpt.config import ModelConfig
from gpt.device import Compute
from gpt.distributed.process_group import ProcessGroup
from tiny import tiny_config
from training.counted import CountedTraining, assert_as_predicted, fake_processes, sent

PROCESSES = 64
CPU = Compute(torch.device("cpu"), torch.float32)
VARIANTS = {
    "tiny": tiny_config(),
    "llama": tiny_config(tie_weights=False, n_kv_head=2, mlp="swiglu", norm="rmsnorm", position="rope", bias=True),
}
PEAKS = {
    "blocks": {"n_embd": 256, "vocab_size": 300, "n_layer": 3},
    "vocabulary": {"n_embd": 128, "vocab_size": 6400},
    "untied": {"n_embd": 128, "vocab_size": 6400, "n_layer": 3, "tie_weights": False},
}


@pytest.fixture
def world() -> Iterator[ProcessGroup]:
    """Rank 0 of 64."""
    with fake_processes(PROCESSES) as group:
        yield group


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("method", ["ddp", "fsdp"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_step_sends_and_holds_what_was_predicted(
    world: ProcessGroup, config: ModelConfig, method: Method, optimizer: str, micro_batches: int
) -> None:
    training = CountedTraining(world, config, optimizer, method, CPU, is_fake=True)
    for _ in range(2):  # DDP divides its buckets anew after the first
        traffic = training.step(micro_batches)
    predicted = parallel_step(config, optimizer, method, PROCESSES, micro_batches)
    held = training.held()
    if method == "fsdp" and micro_batches > 1:  # sharded again by the last of them
        held[1] = predicted.gradients
    assert_as_predicted(sent(traffic), held, predicted)


@pytest.mark.parametrize("changes", PEAKS.values(), ids=PEAKS.keys())
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_whole_tensors_take_about_what_was_predicted(
    world: ProcessGroup, changes: dict[str, object], optimizer: str
) -> None:
    """One sequence: activations are small beside the weights."""
    config = tiny_config(**changes)
    training = CountedTraining(world, config, optimizer, "fsdp", CPU, is_fake=True)
    training.step()
    predicted = parallel_step(config, optimizer, "fsdp", PROCESSES)
    whole = training.step().peak - predicted.held
    assert 0.9 < whole / predicted.whole < 1.12
