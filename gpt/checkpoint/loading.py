"""Build a model from a checkpoint, and compare weights with a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.checkpoint.finding import find_checkpoint
from gpt.checkpoint.folder import Checkpoint, read_checkpoint
from gpt.config import Config, DataConfig, SampleConfig
from gpt.data.tokenizers import Tokenizer
from gpt.model import GPT
from gpt.model.quantized import for_format, format_of, quantize, weights_format
from gpt.system.device import meta_device
from gpt.system.errors import CheckpointError
from gpt.system.progress import Report, announce_if_slow, print_line

MAX_POSITION_TABLE_BYTES = 128 << 20
"""Size of the position tables that every model may have, however small its weights are."""
MAX_TABLE_BYTES_PER_WEIGHT_BYTE = 8
"""How many times larger than the weights position tables of more than that size may be.

No sensible configuration comes near this ratio.
"""


@dataclass(frozen=True)
class Loaded:
    """A trained model, ready to use."""

    model: GPT  # in eval mode
    tokenizer: Tokenizer
    config: Config
    folder: Path  # of the checkpoint that was read
    state: dict[str, Any]  # step, losses, counters and dataset fingerprint, as JSON values


# The caller may be in inference mode, and weights that are created in it could never be trained.
@torch.inference_mode(False)
def load_trained(
    path: Path | None,
    runs: Path,
    device: torch.device,
    weights: str | None = None,
    report: Report = print_line,
) -> Loaded:
    """Load the model of a checkpoint in eval mode.

    Args:
        path: the checkpoint or its run, see `find_checkpoint`.
        runs: the folder of all runs.
        weights: the format to which the weights are converted, see `gpt.quantize`; None keeps the
            format in which they were saved.

    Raises:
        CheckpointError: there is no checkpoint, or the checkpoint is damaged, or its weights do not
            fit its configuration.
        InputError: the saved weights have a format that cannot be converted to `weights`.
    """
    with announce_if_slow(report, "loading the model"):
        folder, checkpoint = _find_and_read(path, runs)
        model = build_model(checkpoint, folder)
        # `quantize` refuses weights that are quantized already, even to the same format. So it is
        # called only if the format changes.
        if weights is not None and weights != weights_format(model):
            model = quantize(model, weights)
        model = model.to(device).eval()
    return Loaded(model, checkpoint.tokenizer, checkpoint.config, folder, checkpoint.state)


def _find_and_read(path: Path | None, runs: Path) -> tuple[Path, Checkpoint]:
    """Return a checkpoint's folder and contents, by `find_checkpoint` and `read_checkpoint`.

    A training may remove the checkpoint after it was found and before it is read. The run then has
    a newer checkpoint, which a second search finds.
    """
    # If a checkpoint was removed, the second search finds another one. If the same error comes
    # twice, the checkpoint is missing or damaged, and the search ends.
    last_message = None
    while True:
        try:
            folder = find_checkpoint(path, runs)
            return folder, read_checkpoint(folder, training=False)
        except CheckpointError as error:
            message = str(error)
            if message == last_message:
                raise
            last_message = message


def build_model(checkpoint: Checkpoint, folder: Path) -> GPT:
    """Build a model with the checkpoint's weights on the CPU, in training mode.

    The files of a checkpoint that a stranger made may not fit each other. They are compared before
    memory is allocated, since config.yaml may state sizes that would fill the memory.

    Args:
        folder: the checkpoint's folder, for messages.
    """
    config = checkpoint.config.model
    num_ids = checkpoint.tokenizer.vocab_size
    if config.vocab_size is None or config.vocab_size < num_ids:
        raise CheckpointError(
            f"{folder}: the tokenizer has {num_ids} ids, the model {config.vocab_size}"
        )
    # The number in a name such as `h.3.attn.c_q.weight` is that of the block. Blocks are counted
    # first, since with a huge n_layer even a model without memory would take long to build.
    block_indices = {name.split(".")[1] for name in checkpoint.model if name.startswith("h.")}
    if len(block_indices) != config.n_layer:
        raise CheckpointError(
            f"{folder}: config.yaml has n_layer {config.n_layer}, "
            f"model.safetensors {len(block_indices)} blocks"
        )
    # A new model draws random initial weights, which are overwritten below. `fork_rng` restores the
    # random generator of the caller at its end.
    with torch.random.fork_rng(devices=[]):
        try:
            # On torch's meta device tensors have shapes, but no memory.
            with meta_device():
                meta_model = GPT(config)
            check_weights(_in_format(meta_model, checkpoint.model), checkpoint.model, folder)
        except RuntimeError as error:
            raise CheckpointError(
                f"{folder / 'config.yaml'} has sizes that no tensor can have: {error}"
            ) from None
        check_tables(meta_model, checkpoint.model, folder / "config.yaml")
        # All sizes have been checked, so that memory may be allocated now.
        model = _in_format(GPT(config), checkpoint.model)
    # A strict load would require the tied head too, which a checkpoint leaves out. `check_weights`
    # has compared all other names.
    model.load_state_dict(checkpoint.model, strict=False)
    return model


def check_tables(model: GPT, weights: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise CheckpointError if a model's position tables are unreasonably large.

    The tables are computed from `block_size` in config.yaml. They are not in model.safetensors, so
    that the size of that file does not limit how much memory they take.

    Args:
        model: a model, which may be on the meta device.
        weights: the saved weights.
        source: the name of the configuration, for the message.
    """
    # The position tables are the buffers of a model. On the meta device they have sizes too.
    table_bytes = sum(table.nbytes for table in model.buffers())
    weight_bytes = sum(weight.nbytes for weight in weights.values())
    limit = max(MAX_POSITION_TABLE_BYTES, MAX_TABLE_BYTES_PER_WEIGHT_BYTE * weight_bytes)
    if table_bytes > limit:
        raise CheckpointError(
            f"{source} has an unreasonably large block_size of {model.config.block_size:,}: "
            f"{table_bytes:,} bytes of position tables for {weight_bytes:,} bytes of weights"
        )


def _in_format(model: GPT, weights: dict[str, Tensor]) -> GPT:
    """Give a float32 model the layers that quantized weights need, if the weights are quantized."""
    weights_format = format_of(weights)
    if weights_format == "float32":
        return model
    return for_format(model, weights_format)


def weights_of(model: GPT) -> dict[str, Tensor]:
    """Return the weights to save, by name; a tied head, which is the embedding, is left out."""
    tied = {"lm_head.weight"} if model.config.tie_weights else set()
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def bare_checkpoint(
    model: GPT,
    tokenizer: Tokenizer,
    state: dict[str, Any] | None = None,
    sample: SampleConfig | None = None,
    items: str = "none",
) -> Checkpoint:
    """Return a checkpoint, with a step of 0, of a model that no training of this package made.

    Args:
        state: further values of the checkpoint's state.
        sample: how the model samples; None means the defaults.
        items: what text the model was trained on, see `DataConfig.items`.
    """
    tokenizer_type = tokenizer.to_dict()["type"]
    # `model_validate` checks the two strings, for which the constructor has narrower types.
    data = DataConfig.model_validate({"tokenizer": tokenizer_type, "items": items})
    config = Config(model=model.config, data=data, sample=sample or SampleConfig())
    weights = {name: value.detach().cpu() for name, value in weights_of(model).items()}
    full_state: dict[str, Any] = {"step": 0}
    if state is not None:
        full_state |= state
    # The training state is empty, since no optimizer of this package has made these weights.
    return Checkpoint(weights, training={}, state=full_state, config=config, tokenizer=tokenizer)


def load_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Copy saved weights into a model, in place; raise CheckpointError if they do not fit it."""
    check_weights(model, weights, folder)
    # A strict load would require the tied head too, which a checkpoint leaves out. `check_weights`
    # has compared all other names.
    model.load_state_dict(weights, strict=False)


def check_weights(model: GPT, weights: dict[str, Tensor], folder: Path) -> None:
    """Raise CheckpointError unless saved weights have a model's names, shapes and types."""
    expected = {name: _shape_and_type(value) for name, value in weights_of(model).items()}
    actual = {name: _shape_and_type(value) for name, value in weights.items()}
    # The names of both are compared, since a weight may be missing in the model or in the file.
    for name in [*expected, *actual]:
        if expected.get(name) != actual.get(name):
            raise CheckpointError(
                f"{folder} does not fit the model: {name} is {actual.get(name, 'missing')}, "
                f"expected {expected.get(name, 'none')}"
            )


def _shape_and_type(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
