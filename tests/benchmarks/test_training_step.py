"""A training step: when its clock runs, and what is made of what it measured."""

import io
import json
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks.measure import Row
from benchmarks.training_step import row_of, start_workers, step_flops
from benchmarks.training_worker import StepTimer
from gpt.config import Config
from tiny import tiny_config


def test_steps_are_timed_and_the_wait_between_rounds_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked, answers = 0.0, iter(["\n", "\n", ""]), io.StringIO()

    def wait() -> str:
        nonlocal now
        now += 100  # other variants run
        return next(asked)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr("sys.stdin.readline", wait, raising=False)
    rounds = StepTimer(1, 2, answers)
    rounds.begin(torch.nn.Linear(2, 3), "float32", "eager")
    for step in range(1, 5):
        now += step
        rounds.progress(step, None)
    now += 5
    with pytest.raises(SystemExit):
        rounds.progress(5, None)
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [line["milliseconds"] for line in lines] == [[1000], [2000, 3000], [4000, 5000]]
    assert lines[0]["parameters"] == 9
    assert lines[0]["peak_bytes"] > 10_000_000


JOBS: dict[str, Row] = {"mine": {"trainer": "gpt", "overrides": []}}


def test_the_trainer_itself_runs_and_nothing_is_left(workplace: Path) -> None:
    with ExitStack() as stack:
        ask = start_workers(JOBS, Namespace(config="tiny.yaml", warmup=1, steps=12), stack)["mine"]
        answer = ask()  # more steps than an evaluation interval
        assert len(answer["milliseconds"]) == 12
        assert (answer["dtype"], answer["blocks"]) == ("float32", "eager")
    assert not (workplace / "runs").exists()


def test_a_row_by_hand() -> None:
    config = Config.model_validate({"train": {"batch_size": 3, "grad_accum_steps": 2}})
    config = config.model_copy(update={"model": tiny_config(mlp="swiglu")})
    shared = {"dtype": "bfloat16", "blocks": "eager", "parameters": 5, "peak_bytes": 350}
    rounds = [{**shared, "milliseconds": [10, 30, 20]}, {**shared, "milliseconds": [40, 40, 40]}]
    row = row_of(config, {"bfloat16": {256: 2e9, 512: 4e9}, "float32": {256: 1e9, 512: 0.5e9}}, False, rounds)
    assert row["round_medians"] == [20, 40]
    assert row["milliseconds"]["median"] == 35
    assert row["tokens_per_second"] == pytest.approx(3 * 2 * 16 / 0.035)
    assert row["share_of_matmul_rate"] == pytest.approx(row["model_flops"] / 0.035 / 4e9)
    assert row["share_of_float32_rate"] == pytest.approx(row["model_flops"] / 0.035 / 1e9)
    assert row["peak_bytes"] == 350


def test_a_peer_has_gpt2s_parts() -> None:
    ours = Config().model_copy(update={"model": tiny_config(mlp="relu2", position="rope", n_kv_head=2)})
    gpt2 = Config().model_copy(update={"model": tiny_config()})
    assert step_flops(ours, True) == step_flops(gpt2, False) != step_flops(ours, False)
