"""From a checkpoint to a model that can be used."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt.checkpoint.folder import Checkpoint, read_checkpoint
from gpt.checkpoint.runs import find_checkpoint
from gpt.config import Config
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
    """A model with the checkpoint's weights, on the CPU, in training mode.

    Raises:
        CheckpointError: the weights or the tokenizer do not fit the configuration.
    """
    config = checkpoint.config.model
    if config.vocab_size is None or config.vocab_size < checkpoint.tokenizer.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {checkpoint.tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    with torch.random.fork_rng(devices=[]):  # the fresh weights are thrown away; nobody's randomness moves
        model = GPT(config)
        weights = format_of(checkpoint.model)
        if weights != "float32":
            model = quantize(model, weights)
    load_weights(model, checkpoint.model, folder)
    return model


def weights_of(model: GPT) -> dict[str, Tensor]:
    """The weights to save; a tied head is left out, since it is the embedding."""
    return {
        name: value for name, value in model.state_dict().items() if not (model.config.tie_weights and name == HEAD)
    }


def format_of(weights: dict[str, Tensor]) -> str:
    """float32, or the format of `gpt.quantize` that saved weights are in."""
    types = {value.dtype for name, value in weights.items() if name.endswith((".integers", ".rounded"))}
    return {torch.int8: "int8", torch.uint8: "int4", torch.bfloat16: "bf16"}[types.pop()] if types else "float32"


def load_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Copy saved weights into a model, in place.

    Raises:
        CheckpointError: names or shapes differ.
    """
    expected = {name: tuple(value.shape) for name, value in weights_of(model).items()}
    actual = {name: tuple(value.shape) for name, value in weights.items()}
    for name in [*expected, *actual]:
        if expected.get(name) != actual.get(name):
            raise CheckpointError(
                f"{folder} does not fit the model: {name} is {actual.get(name, 'missing')}, "
                f"expected {expected.get(name, 'none')}"
            )
    model.load_state_dict(weights, strict=False)
