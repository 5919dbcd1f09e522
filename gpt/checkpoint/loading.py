"""Build a model from a checkpoint, and compare weights with a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.checkpoint.folder import Checkpoint, read_checkpoint
from gpt.checkpoint.runs import find_checkpoint
from gpt.config import Config, DataConfig, SampleConfig
from gpt.data.tokenizers import Tokenizer
from gpt.model import GPT
from gpt.model.quantized import for_format, format_of, quantize, weights_format
from gpt.system.device import meta_device
from gpt.system.errors import CheckpointError
from gpt.system.progress import Report, announced, print_line

MOST_TABLES = 128 << 20
"""Bytes that tables of positions may have beside weights of any size."""


@dataclass(frozen=True)
class Loaded:
    """A trained model, ready to use."""

    model: GPT  # in eval mode
    tokenizer: Tokenizer
    config: Config
    folder: Path  # of the checkpoint that was read
    state: dict[str, Any]  # step, losses and counters of the run, and the fingerprint of its dataset, as JSON values


@torch.inference_mode(False)  # the weights can be trained, wherever they are loaded
def load_trained(
    path: Path | None, runs: Path, device: torch.device, weights: str | None = None, report: Report = print_line
) -> Loaded:
    """Load the model of a checkpoint, see `find_checkpoint`, in eval mode.

    Args:
        weights: format to convert them to, see `gpt.quantize`; None: as saved.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or its weights do not fit its configuration.
        InputError: the saved weights have a format that cannot be converted to `weights`.
    """
    with announced(report, "loading the model"):
        folder, checkpoint = _find_and_read(path, runs)
        model = build_model(checkpoint, folder)
        if weights is not None and weights != weights_format(model):
            model = quantize(model, weights)
        model = model.to(device).eval()
    return Loaded(model, checkpoint.tokenizer, checkpoint.config, folder, checkpoint.state)


def _find_and_read(path: Path | None, runs: Path) -> tuple[Path, Checkpoint]:
    """Return a checkpoint and its folder; a run that saves meanwhile may remove the one that was found first."""
    failure = ""
    while True:
        try:
            folder = find_checkpoint(path, runs)
            return folder, read_checkpoint(folder, training=False)
        except CheckpointError as error:
            if str(error) == failure:
                raise
            failure = str(error)


def build_model(checkpoint: Checkpoint, folder: Path) -> GPT:
    """Build a model with the checkpoint's weights, if these fit, on the CPU, in training mode."""
    config = checkpoint.config.model
    if config.vocab_size is None or config.vocab_size < checkpoint.tokenizer.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {checkpoint.tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    blocks = {name.split(".")[1] for name in checkpoint.model if name.startswith("h.")}
    if len(blocks) != config.n_layer:
        raise CheckpointError(
            f"{folder}: config.yaml has n_layer {config.n_layer}, model.safetensors {len(blocks)} blocks"
        )
    # the initial weights are discarded; the generator stays as it was
    with torch.random.fork_rng(devices=[]):
        try:
            # wrong sizes in config.yaml allocate nothing
            with meta_device():
                meta_model = GPT(config)
            check_weights(_in_format(meta_model, checkpoint.model), checkpoint.model, folder)
        except RuntimeError as error:
            raise CheckpointError(f"{folder / 'config.yaml'} has sizes that no tensor can have: {error}") from None
        check_tables(meta_model, checkpoint.model, folder / "config.yaml")
        model = _in_format(GPT(config), checkpoint.model)
    model.load_state_dict(checkpoint.model, strict=False)
    return model


def check_tables(model: GPT, weights: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise CheckpointError where a configuration wants tables of positions, which no file holds, of an absurd size."""
    tables, held = (sum(each.nbytes for each in tensors) for tensors in (model.buffers(), weights.values()))
    if tables > max(MOST_TABLES, 8 * held):
        size = f"{model.config.block_size:,}, {tables:,} bytes of tables for {held:,} bytes of weights"
        raise CheckpointError(f"{source} has an absurd block_size of {size}")


def _in_format(model: GPT, weights: dict[str, Tensor]) -> GPT:
    weights_format = format_of(weights)
    return model if weights_format == "float32" else for_format(model, weights_format)


def weights_of(model: GPT) -> dict[str, Tensor]:
    """Return the weights to save; a tied head is left out, since it is the embedding."""
    tied = {"lm_head.weight"} if model.config.tie_weights else set()
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def bare_checkpoint(
    model: GPT, tokenizer: Tokenizer, state: dict[str, Any] | None = None, end_id: int | None = None
) -> Checkpoint:
    """Return a checkpoint, with a step of 0, of a model that this package's trainer has not trained."""
    data = DataConfig.model_validate({"tokenizer": tokenizer.to_dict()["type"]})
    config = Config(model=model.config, data=data, sample=SampleConfig(end_id=end_id))
    weights = {name: value.detach().cpu() for name, value in weights_of(model).items()}
    return Checkpoint(weights, {}, {"step": 0, **(state or {})}, config, tokenizer)


def load_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Copy saved weights that fit into a model, in place."""
    check_weights(model, weights, folder)
    model.load_state_dict(weights, strict=False)


def check_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Raise CheckpointError where the names, shapes or types of saved weights are not those of a model."""
    expected = {name: _kind(value) for name, value in weights_of(model).items()}
    actual = {name: _kind(value) for name, value in weights.items()}
    for name in [*expected, *actual]:
        if expected.get(name) != actual.get(name):
            raise CheckpointError(
                f"{folder} does not fit the model: {name} is {actual.get(name, 'missing')}, "
                f"expected {expected.get(name, 'none')}"
            )


def _kind(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
