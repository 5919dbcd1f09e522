"""What the sections hold, and what they refuse whoever builds them."""

from typing import Any

import pytest
from pydantic import ValidationError

from gpt.config import Config, DataConfig, ModelConfig, OptimConfig, RunConfig, SamplingParams, TrainConfig
from gpt.config.sections import Section
from tiny import tiny_config


@pytest.mark.parametrize(
    "section", [RunConfig, DataConfig, ModelConfig, OptimConfig, TrainConfig, SamplingParams, Config]
)
def test_no_value_of_a_section_can_be_changed(section: type[Section]) -> None:
    built = section()
    for name in section.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(built, name, getattr(built, name))


def test_lists_become_tuples_so_that_they_cannot_be_changed_either() -> None:
    assert OptimConfig.model_validate({"betas": [0.8, 0.95]}).betas == (0.8, 0.95)
    assert SamplingParams.model_validate({"stop": ["\n\n", "END"]}).stop == ("\n\n", "END")


@pytest.mark.parametrize(
    ("changes", "kv_heads", "head_dim", "mlp_hidden"),
    [
        ({}, 4, 8, 128),
        ({"n_kv_head": 2}, 2, 8, 128),
        ({"n_kv_head": 1, "n_head": 2}, 1, 16, 128),
        ({"mlp": "swiglu"}, 4, 8, 88),  # 8/3 * 32 = 85.3, up to a multiple of 8
        ({"mlp": "swiglu", "n_embd": 96}, 4, 24, 256),  # 8/3 * 96 = 256 exactly
        ({"mlp": "swiglu", "mlp_width": 7}, 4, 8, 7),
        ({"mlp_width": 100}, 4, 8, 100),
    ],
)
def test_the_shapes_that_follow_from_others(
    changes: dict[str, Any], kv_heads: int, head_dim: int, mlp_hidden: int
) -> None:
    model = tiny_config(**changes)
    assert (model.kv_heads, model.head_dim, model.mlp_hidden) == (kv_heads, head_dim, mlp_hidden)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (RunConfig, {"seed": 0, "threads": 1, "device": "cuda:3", "compile": True}),
        (RunConfig, {"name": "a.b-c_d", "device": "mps", "compile": False, "kernels": "native", "seed": 2**32 - 1}),
        (DataConfig, {"source": "file", "path": "a b.txt"}),
        (ModelConfig, {"n_layer": 1, "n_head": 1, "n_embd": 1, "block_size": 1, "dropout": 0}),
        (ModelConfig, {"n_head": 3, "n_embd": 6, "position": "rope"}),
        (ModelConfig, {"n_head": 2, "n_embd": 6, "position": "sinusoidal"}),
        (OptimConfig, {"min_lr": 1e-3, "weight_decay": 0, "grad_clip": 0, "warmup_steps": 0, "betas": [0, 0.5]}),
        (TrainConfig, {"length_warmup": [1e-9, 0.5, 0.499]}),
        (OptimConfig, {"name": "muon", "muon_rate": 1, "weight_decay": 2}),
        (SamplingParams, {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 1, "max_new_tokens": 0}),
    ],
)
def test_the_smallest_and_oddest_values_that_make_sense_are_taken(section: type[Section], values: Any) -> None:
    built = section.model_validate(values)
    assert {name: getattr(built, name) for name in values} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (RunConfig, {"kernels": "cuda"}),
        (RunConfig, {"seed": 2**32}),
        (TrainConfig, {"length_warmup": [0.5, 0]}),
        (TrainConfig, {"length_warmup": [0.7, 0.2, 0.1]}),
        (OptimConfig, {"name": "muon", "muon_rate": 0}),
        (OptimConfig, {"name": "muon", "weight_decay": -1}),
    ],
)
def test_values_just_past_those_that_make_sense_are_refused(section: type[Section], values: Any) -> None:
    with pytest.raises(ValidationError, match=list(values)[-1]):
        section.model_validate(values)


def test_the_rate_of_muon_is_refused_where_nothing_reads_it() -> None:
    """Otherwise a forgotten `name: muon` would train something else without a word."""
    values = {"muon_rate": 0.03}
    with pytest.raises(ValidationError) as caught:
        OptimConfig.model_validate(values)
    cause = caught.value.errors()[0]["ctx"]["error"]
    assert cause.problems == [(key, "is only read with name: muon, and name is adamw") for key in values]
    assert OptimConfig.model_validate({"name": "muon", **values}).muon_rate == 0.03


@pytest.mark.parametrize(("size", "shares", "is_cut"), [(32, 2, True), (24, 2, False), (34, 2, False), (1, 0, True)])
def test_windows_are_cut_into_whole_sequences_of_eight_tokens_or_more(size: int, shares: int, is_cut: bool) -> None:
    values = {"model": {"block_size": size}, "train": {"length_warmup": shares * [0.1]}}
    if is_cut:
        assert Config.model_validate(values).sequence_lengths()[0][0] == (8 if shares else size)
    else:
        message = f"train.length_warmup: cannot cut model.block_size {size} into 4 sequences of 8 tokens or more; make "
        with pytest.raises(
            ValidationError, match=message + "block_size a multiple of 4, 32 or more, or leave out shares"
        ):
            Config(**values)
