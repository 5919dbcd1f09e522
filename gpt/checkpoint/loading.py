"""From a checkpoint to a model that can be used."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt.checkpoint.folder import Checkpoint, read_checkpoint
from gpt.checkpoint.runs import find_checkpoint
from gpt.config import Config, ModelConfig
from gpt.data.ngrams import NgramTable
from gpt.data.tokenizers import Tokenizer
from gpt.errors import CheckpointError
from gpt.model import GPT
from gpt.model.quantized import quantize, weights_format

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Loaded:
    """A trained model, ready to use.

    Attributes:
        model: in eval mode.
        tokenizer: the one it was trained with.
        config: of the run.
        folder: the checkpoint it came from.
        data: fingerprint of the dataset it was trained on.
        ngrams: of the text it was trained on, or None.
    """

    model: GPT
    tokenizer: Tokenizer
    config: Config
    folder: Path
    data: str
    ngrams: NgramTable | None


def load_trained(path: Path | None, runs: Path, device: torch.device, weights: str | None = None) -> Loaded:
    """Load what `find_checkpoint` finds.

    Args:
        path: what the user said; None: the newest run.
        runs: folder of run folders.
        device: where the model is to be.
        weights: format to have them in, see `gpt.quantize`; None: as they were saved.

    Raises:
        CheckpointError: there is none, or it is damaged or does not fit its own configuration.
        InputError: the weights were saved in another format than float32 and the one asked for.
    """
    folder = find_checkpoint(path, runs)
    checkpoint = read_checkpoint(folder)
    model = build_model(checkpoint, folder)
    if weights is not None and weights != weights_format(model):
        model = quantize(model, weights)
    model = model.to(device).eval()
    return Loaded(
        model, checkpoint.tokenizer, checkpoint.config, folder, str(checkpoint.state.get("data")), checkpoint.ngrams
    )


def build_model(checkpoint: Checkpoint, folder: Path) -> GPT:
    """Build a model with the checkpoint's weights, on the CPU, in training mode.

    Raises:
        CheckpointError: the weights or the tokenizer do not fit the configuration.
    """
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
    with torch.random.fork_rng(devices=[]):  # the fresh weights are discarded, and randomness is left as it was
        try:  # on the meta device, where absurd sizes in config.yaml allocate nothing
            check_weights(_build(config, checkpoint.model, "meta"), checkpoint.model, folder)
        except RuntimeError as error:
            raise CheckpointError(f"{folder / 'config.yaml'} has sizes that no tensor can have: {error}") from None
        model = _build(config, checkpoint.model, "cpu")
    model.load_state_dict(checkpoint.model, strict=False)
    return model


def _build(config: ModelConfig, weights: dict[str, Tensor], device: str) -> GPT:
    """Build a model whose blocks are in the format of the weights."""
    with torch.device(device):
        model, weights_format = GPT(config), format_of(weights)
    return model if weights_format == "float32" else quantize(model, weights_format)


def weights_of(model: GPT) -> dict[str, Tensor]:
    """Return the weights to save; a tied head is left out, since it is the embedding."""
    return {
        name: value for name, value in model.state_dict().items() if not (model.config.tie_weights and name == HEAD)
    }


def format_of(weights: dict[str, Tensor]) -> str:
    """Return float32, or the format of `gpt.quantize` that saved weights are in."""
    types = {value.dtype for name, value in weights.items() if name.endswith((".integers", ".rounded"))}
    return {torch.int8: "int8", torch.uint8: "int4", torch.bfloat16: "bf16"}[types.pop()] if types else "float32"


def load_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Copy saved weights into a model, in place.

    Raises:
        CheckpointError: see `check_weights`.
    """
    check_weights(model, weights, folder)
    model.load_state_dict(weights, strict=False)


def check_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Make sure that saved weights are those of a model.

    Raises:
        CheckpointError: names, shapes or types differ.
    """
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
