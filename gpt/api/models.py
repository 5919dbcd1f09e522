"""Load a trained model in one line, as in a notebook."""

from pathlib import Path

from gpt.checkpoint import load_trained
from gpt.data import Tokenizer
from gpt.device import choose_device
from gpt.model import GPT


def load(path: str | Path | None = None, device: str = "auto") -> tuple[GPT, Tokenizer]:
    """Load a trained model, in eval mode, and its tokenizer.

    Args:
        path: a run folder (its best checkpoint), a checkpoint folder, or `best` or `last` inside a
            run folder; None: the newest run below `runs`.
        device: auto, cpu, cuda, cuda:N or mps.

    Raises:
        CheckpointError: there is no checkpoint there, or it is damaged.
        DeviceError: there is no such device.
    """
    loaded = load_trained(Path(path) if path is not None else None, Path("runs"), choose_device(device))
    return loaded.model, loaded.tokenizer
