"""What a training is expected to take: counted, or scaled from a trial."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gpt.accounting.flops import run_flops, training_flops, whole_flops
from gpt.accounting.memory_limits import training_bytes
from gpt.accounting.parameters import count_parameters
from gpt.config import Config
from gpt.config.loading import parse_config
from gpt.device import Compute
from gpt.environment import read_settings
from gpt.training import expectation
from gpt.training.expectation import Expectation, describe_seconds, expect
from tiny import TINY

SETTINGS = replace(read_settings(offline=True), data_dir=None)


def config_of(*overrides: str) -> Config:
    return parse_config(TINY, "tiny.yaml", ["model.vocab_size=30", "model.n_layer=3", "run.kernels=torch", *overrides])


def test_the_time_is_that_of_a_layer_by_flops_and_the_optimizers_by_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    # seconds of a pass, and of an update
    monkeypatch.setattr(expectation, "time", SimpleNamespace(perf_counter=lambda: next(clock) / 8))
    config = config_of("train.teacher_share=0.5")
    found, flops = expect(config, 1000, SETTINGS), whole_flops(config, 1000)
    trial = training_flops(config.model.model_copy(update={"n_layer": 1}), 4, 16)
    assert found.seconds == pytest.approx(flops / trial / 8 + 9 * 3 / 8)
    assert (found.parameters, found.flops) == (count_parameters(config.model).total, run_flops(config, 900))
    monkeypatch.setattr(expectation, "TRIAL_FLOPS", trial / 2)  # of fewer sequences
    assert expect(config, 1000, SETTINGS).seconds == pytest.approx(2 * flops / trial / 8 + 9 * 3 / 8)


def test_the_memory_grows_with_the_batch_by_what_is_kept_of_it() -> None:
    small, large = (expect(config_of(f"train.batch_size={size}"), 1000, SETTINGS).nbytes for size in (4, 400))
    least = [training_bytes(config_of(f"train.batch_size={size}"), compute()) for size in (4, 400)]
    assert small is not None
    assert large is not None
    assert least[1] - least[0] < large - small < 8 * (least[1] - least[0])


def test_checkpointed_layers_keep_only_their_inputs() -> None:
    config = config_of("train.batch_size=400", "model.n_layer=12")
    checkpointed = config.model_copy(
        update={"train": config.train.model_copy(update={"activation_checkpointing": True})}
    )
    least = [training_bytes(each, compute()) for each in (config, checkpointed)]
    kept, recomputed = (expect(each, 1000, SETTINGS).nbytes for each in (config, checkpointed))
    assert kept is not None
    assert recomputed is not None
    assert least[0] - least[1] < kept - recomputed < 8 * (least[0] - least[1])


def test_of_a_device_that_is_not_here_only_what_is_counted_is_said() -> None:
    found = expect(config_of("run.device=cuda:99"), 1000, SETTINGS)
    assert (found.nbytes, found.seconds) == (None, None)
    assert found.parameters > 0


def compute() -> Compute:
    return Compute(torch.device("cpu"), torch.float32)


def test_it_leaves_no_trace_in_the_random_numbers_of_the_run() -> None:
    before = torch.get_rng_state()
    expect(config_of("model.dropout=0.5"), 1000, SETTINGS)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_is_said_in_two_digits_or_so() -> None:
    times = (0.1, 8.4, 59.4, 96, 119.9, 125, 899, 5000, 12_000)
    said = ["1 s", "8 s", "59 s", "1 min 40 s", "2 min", "2 min", "15 min", "83 min", "3.3 h"]
    assert [describe_seconds(seconds) for seconds in times] == said
    counted = "1,000 parameters, 2.5 TFLOP"
    assert str(Expectation(1000, 2.5e12)) == counted
    assert str(Expectation(1000, 2.5e12, 3 << 20, 8)) == f"{counted}; about 3 MiB of memory and 8 s on this machine"
