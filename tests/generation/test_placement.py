"""Where a model decodes that may decode anywhere."""

import pytest
import torch

from gpt.generation import placement
from gpt.generation.placement import auto_device
from gpt.generation.runtime import DecodeOptions
from gpt.model import GPT
from gpt.system.device import meta_device
from tiny import sharp_model, tiny_config

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device that this build of torch can use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(placement, "choose_device", torch.device)


def model_of_width(width: int) -> GPT:
    """A model of 12 layers, which takes no memory."""
    with meta_device():
        return GPT(tiny_config(n_layer=12, n_head=12, n_embd=width))


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("width", "options", "expected"),
    [
        # 86M parameters, of which one text was written slower on a GPU
        (768, DecodeOptions(), CPU),
        # 240M parameters
        (1296, DecodeOptions(), CUDA),
        (1296, DecodeOptions("eager"), CUDA),
        # The C++ engine is on the CPU, and graphs are on CUDA devices, whatever the size.
        (1296, DecodeOptions("native"), CPU),
        (1296, DecodeOptions(kv_dtype="int8"), CPU),
        (768, DecodeOptions("graph"), CUDA),
    ],
)
def test_large_models_decode_on_a_gpu(
    width: int, options: DecodeOptions, expected: torch.device
) -> None:
    assert auto_device(model_of_width(width), options) == expected


def test_without_a_gpu_the_cpu_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert auto_device(model_of_width(1296), DecodeOptions()) == CPU


def test_small_model_initializes_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("CUDA was asked"))
    assert auto_device(sharp_model(), DecodeOptions()) == CPU
