"""From a checkpoint to a model, or to a sentence why not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import Checkpoint, RunFolder, build_model, load_trained, load_weights, loading, weights_of
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import CheckpointError

FOLDER = Path("runs/x/checkpoints/step-000005")


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_model_has_the_weights_of_the_checkpoint_and_leaves_the_generator_of_torch_alone(
    make_checkpoint: Callable[..., Checkpoint], tie_weights: bool
) -> None:
    checkpoint, before = make_checkpoint(tie_weights=tie_weights), torch.get_rng_state()
    model = build_model(checkpoint, FOLDER)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    weights = weights_of(model)
    assert weights.keys() == checkpoint.model.keys()
    assert all(torch.equal(weights[name], checkpoint.model[name]) for name in weights)
    assert (model.lm_head.weight is model.wte.weight) is tie_weights
    assert ("lm_head.weight" in weights) is not tie_weights


def test_weights_are_copied_into_the_parameters_that_an_optimizer_holds_or_not_at_all(
    checkpoint: Checkpoint, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    model = GPT(checkpoint.config.model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError):
        load_weights(model, make_checkpoint(step=7, n_layer=2).model, FOLDER)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    load_weights(model, checkpoint.model, FOLDER)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters
    with torch.no_grad():
        model.wte.weight.zero_()
    assert checkpoint.model["wte.weight"].abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "weight", "words"),
    [
        ("ln_f.weight", torch.ones(9), r"is \(9,\) float32, expected \(8,\) float32"),
        ("ln_f.weight", torch.ones(8, dtype=torch.float64), r"is \(8,\) float64, expected \(8,\) float32"),
        ("ln_f.weight", torch.ones(8, dtype=torch.bfloat16), r"is \(8,\) bfloat16, expected \(8,\) float32"),
        ("h.0.ln_3.weight", torch.ones(8), r"is \(8,\) float32, expected none"),
        ("lm_head.weight", torch.ones(8), r"is \(8,\) float32, expected none"),
        ("wte.weight", None, "is missing"),
        ("h.0.mlp.c_fc.weight", None, "is missing"),
    ],
)
def test_a_weight_that_does_not_fit_is_named(
    checkpoint: Checkpoint, name: str, weight: torch.Tensor | None, words: str
) -> None:
    weights = {key: value for key, value in {**checkpoint.model, name: weight}.items() if value is not None}
    with pytest.raises(CheckpointError, match=rf"{FOLDER} does not fit the model: {name} {words}"):
        build_model(replace(checkpoint, model=weights), FOLDER)


@pytest.mark.timeout(60)  # milliseconds, while such a model takes minutes and all memory to build
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_layer": 200_000}, "n_layer 200000, model.safetensors 1 blocks"),
        ({"n_embd": 10**6}, "does not fit the model: wte.weight"),
        ({"n_embd": 10**9}, "no tensor can have"),
        ({"mlp_width": 10**9}, "does not fit the model: h.0.mlp.c_fc."),
        ({"block_size": 10**9}, "does not fit the model: wpe.weight"),
        ({"vocab_size": 10**9}, "does not fit the model: wte.weight"),
        ({"vocab_size": 10**9, "block_size": 10**9, "position": "rope"}, "does not fit the model"),
    ],
)
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_sizes_that_the_weights_do_not_have_are_noticed_before_anything_is_allocated(
    checkpoint: Checkpoint, changes: dict[str, object], words: str, weights: str
) -> None:
    model = checkpoint.model if weights == "float32" else weights_of(quantize(build_model(checkpoint, FOLDER), weights))
    section = checkpoint.config.model.model_copy(update=changes)
    config = checkpoint.config.model_copy(update={"model": section})
    with pytest.raises(CheckpointError) as caught:
        build_model(replace(checkpoint, config=config, model=model), FOLDER)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_vocabulary_may_be_larger_than_the_tokenizers_and_not_smaller(
    checkpoint: Checkpoint, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    assert build_model(make_checkpoint(vocab_size=64), FOLDER).vocab_size == 64
    with pytest.raises(CheckpointError, match="the tokenizer has 256 ids, the model 10"):
        build_model(replace(checkpoint, tokenizer=ByteTokenizer()), FOLDER)


def test_load_trained_gives_all_that_is_needed_to_generate(tmp_path: Path, checkpoint: Checkpoint) -> None:
    run = RunFolder(tmp_path / "runs" / "one")
    folder = run.save(checkpoint, best=True, keep_last=1)
    loaded = load_trained(None, tmp_path / "runs", torch.device("cpu"))
    assert loaded.folder == folder
    assert loaded.config == checkpoint.config
    assert isinstance(loaded.tokenizer, CharTokenizer)
    assert loaded.tokenizer.to_dict() == checkpoint.tokenizer.to_dict()
    assert not loaded.model.training
    idx = torch.zeros(1, 3, dtype=torch.long)
    assert torch.equal(loaded.model(idx), build_model(checkpoint, folder).eval()(idx))


@pytest.mark.parametrize("position", ["rope", "sinusoidal"])
def test_tables_of_positions_that_no_such_model_has_are_refused_before_they_are_computed(
    make_checkpoint: Callable[..., Checkpoint], position: str
) -> None:
    checkpoint = make_checkpoint(position=position)
    model = checkpoint.config.model.model_copy(update={"block_size": 10**8})
    config = checkpoint.config.model_copy(update={"model": model})
    with pytest.raises(CheckpointError, match=r"config.yaml has an absurd block_size of 100,000,000"):
        build_model(replace(checkpoint, config=config), FOLDER)


def test_a_checkpoint_that_a_run_removes_while_it_is_read_is_looked_for_again(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    run.save(make_checkpoint(step=1), best=True, keep_last=1)
    read = loading.read_checkpoint

    def save_meanwhile(folder: Path, **options: bool) -> Checkpoint:
        monkeypatch.setattr(loading, "read_checkpoint", read)
        run.save(make_checkpoint(step=2), best=True, keep_last=1)
        return read(folder, **options)

    monkeypatch.setattr(loading, "read_checkpoint", save_meanwhile)
    assert load_trained(run.path, tmp_path, torch.device("cpu")).folder.name == "step-000002"
