import sys
from pathlib import Path

import pytest

from gpt.api.displays import build_displays
from gpt.config import TrainConfig
from gpt.errors import GPTError
from gpt.training.monitor import Monitor
from training.sessions import start_session


def test_attention_is_drawn_in_more_than_one_color(tmp_path: Path) -> None:
    pictures = []

    class Pictures(Monitor):
        def picture(self, step: int, name: str, pixels: object) -> None:
            pictures.append(pixels)

    options = "train.attention_interval=1", "train.max_steps=2"
    trainer = start_session(tmp_path, *options, displays=build_displays(TrainConfig(attention_interval=1)))
    trainer.monitor = Pictures()
    trainer.run()
    assert len(pictures) == 2
    assert all(pixels.ndim == 3 and pixels.std() > 10 for pixels in pictures)  # type: ignore[attr-defined]


def test_pictures_without_matplotlib_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    build_displays(TrainConfig())
    with pytest.raises(GPTError, match="matplotlib is not installed"):
        build_displays(TrainConfig(attention_interval=1))
