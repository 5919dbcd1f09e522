"""What shows a training besides the files of its run: a curve in a notebook, and pictures of attention."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpt.api.live_curve import LiveCurve
from gpt.config import TrainConfig
from gpt.data import Tokenizer
from gpt.inspection.rendering.pictures import attention_picture, require_matplotlib, to_pixels
from gpt.inspection.views.attention import attention_view
from gpt.model import GPT
from gpt.progress import in_notebook
from gpt.training.setup import Displays


def build_displays(config: TrainConfig) -> Displays:
    """Return what shows a training with this configuration.

    Raises:
        DataError: pictures are asked for, and matplotlib is not installed.
    """
    if config.attention_interval:
        require_matplotlib()
    return Displays(LiveCurve if in_notebook() else Displays.progress, draw_attention)


def draw_attention(model: GPT, tokenizer: Tokenizer, idx: Tensor) -> NDArray[np.uint8]:
    """Draw the attention of a model to token ids (T,): an image, (height, width, 3)."""
    return to_pixels(attention_picture(attention_view(model, tokenizer, idx)))
