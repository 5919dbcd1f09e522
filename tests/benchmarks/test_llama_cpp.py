"""llama.cpp beside the model, where its Python package is installed."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.hugging_face import check_agreement
from benchmarks.llama_cpp import LlamaCpp, check_llama_cpp
from gpt.config import SamplingParams
from gpt.system.errors import ConfigError
from tiny import sharp_model

LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "mlp_width": 96}

needs_llama_cpp = pytest.mark.skipif(
    not (find_spec("llama_cpp") and find_spec("gguf")), reason="llama-cpp-python and gguf are not installed"
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends processes after the test."""
    with ExitStack() as found:
        yield found


def test_a_python_without_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--llama-cpp .*nowhere: .*pip install llama-cpp-python"):
        check_llama_cpp(str(tmp_path / "nowhere"))


@needs_llama_cpp
@pytest.mark.parametrize("changes", [{}, {"n_kv_head": 2}, {"tie_weights": True}], ids=str)
def test_float32_gives_our_logits(stack: ExitStack, changes: dict[str, object]) -> None:
    model = sharp_model(**LLAMA, **changes)
    peer = LlamaCpp(model, "F32", sys.executable, stack)
    check_agreement("llama.cpp", peer.logits, model, 1e-4)
    ticks = peer.decode(torch.zeros(3, 4, dtype=torch.int64), SamplingParams(max_new_tokens=5), "F32")
    assert len(ticks) == 7
    assert sorted(ticks) == ticks
