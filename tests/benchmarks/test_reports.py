from pathlib import Path
from typing import Any

import pytest

from benchmarks.decode_report import DecodeSetting, Timings
from benchmarks.decode_report import summary_of as decode_summary
from benchmarks.decode_report import table_of as decode_table
from benchmarks.race_report import Finish
from benchmarks.race_report import summary_of as race_summary
from benchmarks.race_report import table_of as race_table
from benchmarks.recipe import SeedRun, train_command
from benchmarks.recipe import summary_of as recipe_summary
from benchmarks.recipe import table_of as recipe_table
from benchmarks.step_report import StepSetting, gpt2_shape, rates_table, summary_of, table_of
from benchmarks.workers import Answer
from gpt.accounting.flops import decode_flops, forward_flops, training_flops
from gpt.config import Config
from tiny import tiny_config

RATES = {"bfloat16": {256: 2e9, 512: 4e9}, "float32": {256: 1e9, 512: 0.5e9}}


def answer(milliseconds: list[float], **changes: Any) -> Answer:
    values = {"dtype": "bfloat16", "blocks": "eager", "parameters": 5, "before_bytes": 100, "peak_bytes": 350}
    return Answer(milliseconds=milliseconds, **{**values, **changes})


@pytest.fixture
def setting() -> StepSetting:
    config = Config.model_validate({"train": {"batch_size": 3, "grad_accum_steps": 2}})
    return StepSetting(config.model_copy(update={"model": tiny_config(mlp="swiglu")}), RATES)


def test_a_step_is_compared_with_the_first_row_round_by_round(setting: StepSetting) -> None:
    answers = {
        "native": [answer([10, 30, 20]), answer([40, 40, 40])],
        "nanoGPT float32": [answer([30, 30, 30]), answer([80, 80, 80], dtype="float32", peak_bytes=400)],
    }
    summary = summary_of(setting, answers)
    ours, theirs = summary["variants"].values()
    assert summary["baseline"] == "native"
    assert summary["tokens_per_step"] == 3 * 2 * 16
    assert ours["times_slower"] == [1, 1]
    assert theirs["times_slower"] == [1.5, 2]
    assert ours["round_medians"] == [20, 40]
    assert ours["milliseconds"]["median"] == 35
    assert ours["tokens_per_second"] == pytest.approx(96 / 0.035)
    flops = training_flops(setting.config.model, 6, 16)
    assert ours["share_of_matmul_rate"] == pytest.approx(flops / 0.035 / 4e9)
    assert ours["share_of_float32_rate"] == pytest.approx(flops / 0.035 / 1e9)
    assert theirs["model_flops"] == training_flops(tiny_config(mlp="gelu"), 6, 16)
    assert theirs["peak_bytes_over_start"] == 300
    rows = table_of(setting, "x.yaml", answers).rows
    assert rows[1][0] == "nanoGPT float32"
    assert rows[1][-1] == "1.75 (1.50-2.00)"


def test_a_peer_has_gpt2s_parts() -> None:
    assert gpt2_shape(tiny_config(mlp="relu2", position="rope", n_kv_head=2)) == tiny_config(bias=False)


def test_the_fastest_size_is_named() -> None:
    table = rates_table(RATES)
    assert table.header == ("type", "256", "512", "best")
    assert [row[-1] for row in table.rows] == ["512", "256"]


def test_a_recipe_shows_each_seed_mean_and_deviation() -> None:
    runs = [SeedRun(1, 10.0, 1.5), SeedRun(2, 14.0, 1.7)]
    assert [row[0] for row in recipe_table("x", runs).rows] == ["1", "2", "mean", "deviation"]
    assert recipe_table("x", runs).rows[2:] == [("mean", "12.0", "1.6000"), ("deviation", "2.8", "0.1414")]
    assert [row[0] for row in recipe_table("x", runs[:1]).rows] == ["1", "mean"]
    assert recipe_summary(runs)["runs"][1] == {"seed": 2, "seconds": 14.0, "loss": 1.7}


def test_the_command_of_a_recipe_ends_with_what_the_measurement_sets(tmp_path: Path) -> None:
    command = train_command("x.yaml", ["train.max_steps=5", "run.seed=3"], tmp_path)
    wanted = ["--config", "x.yaml", "train.max_steps=5", "run.seed=3", f"run.dir={tmp_path}", "run.name=bench"]
    assert command[-6:] == wanted


def test_a_race_is_compared_round_by_round() -> None:
    finishes = {
        "gpt": [Finish(10, 1.5, 1.4, 128), Finish(20, 1.5, 1.4, 128)],
        "nanoGPT": [Finish(20, 1.9, 1.9, 64), Finish(60, 1.9, 1.9, 64)],
    }
    summary = race_summary(finishes)
    assert summary["contenders"]["nanoGPT"]["times_slower"] == [2, 3]
    assert race_table("x", finishes).rows == [
        ("gpt", "15.0", "1.00 (1.00-1.00)", "1.5000", "1.4000", "128"),
        ("nanoGPT", "40.0", "2.50 (2.00-3.00)", "1.9000", "1.9000", "64"),
    ]


def timings(weights: str, seconds: list[float], is_peer: bool = False) -> Timings:
    return Timings(weights, is_peer, bytes_per_step=1000, bandwidth=4000.0, seconds=seconds)


def test_a_peer_is_compared_with_our_row_of_as_many_bits() -> None:
    found = {
        "native": timings("float32", [1.0, 2.0]),
        "native-int8": timings("int8", [0.5, 0.5]),
        "eager": timings("float32", [8.0, 8.0]),
        "llama.cpp F32": timings("float32", [3.0, 4.0], is_peer=True),
        "llama.cpp Q8_0": timings("int8", [1.0, 2.0], is_peer=True),
        "other": timings("int4", [1.0, 2.0], is_peer=True),
    }
    setting = DecodeSetting("4/4/128", 3, tiny_config(), 2, 4, 1e6)
    rows = decode_summary(setting, found)["rows"]
    assert [(row["times_of"], row["times"]) for row in rows.values()] == [
        ("native", [1.0, 1.0]),
        ("native", [0.5, 0.25]),
        ("native", [8.0, 4.0]),
        ("native", [3.0, 2.0]),
        ("native-int8", [2.0, 4.0]),
        ("native", [1.0, 1.0]),
    ]
    last = rows["llama.cpp Q8_0"]
    assert (last["times_lowest"], last["times_median"], last["times_highest"]) == (2.0, 3.0, 4.0)
    assert last["tokens_per_second"] == pytest.approx(2 * 4 / 1.5)
    assert last["prompt_tokens_per_second"] is None
    assert decode_table(setting, found).rows[4][-1] == "3.00 (2.00-4.00) of native-int8"


def test_prefill_is_the_time_to_the_first_token() -> None:
    config = tiny_config()
    (row,) = decode_summary(DecodeSetting("x", 8, config, 2, 1, 1e6), {"a": timings("float32", [0.5])})["rows"].values()
    assert row["prompt_tokens_per_second"] == 2 * 8 / 0.5
    head = 2 * 2 * 8 * config.n_embd * 23
    assert row["arithmetic_share"] == pytest.approx((forward_flops(config, 2, 8) - head * 7 / 8) / 0.5 / 1e6)
    both = Timings("float32", False, 1, 1.0)
    both.add([10.0, 12.0, 13.0, 13.5])
    (row,) = decode_summary(DecodeSetting("x", 8, config, 2, 2, 1e6), {"a": both})["rows"].values()
    assert row["prompt_tokens_per_second"] == 2 * 8 / 2.0
    assert row["tokens_per_second"] == pytest.approx(2 * 2 / 3.5)
    decoding = decode_flops(config, 2, 9)
    assert row["arithmetic_share"] * 3.5e6 == pytest.approx(forward_flops(config, 2, 8) - head * 7 / 8 + decoding)
