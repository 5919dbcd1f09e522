"""Other processes: how long they take, how they fail, and what peers compute in them."""

import sys
from argparse import Namespace
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.hugging_face import check_agreement
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.training_step import start_workers
from gpt.config import SamplingParams
from tiny import sharp_model

LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "mlp_width": 96}


def test_trainer_itself_runs_and_nothing_is_left(workplace: Path) -> None:
    with ExitStack() as stack:
        jobs = {"mine": {"trainer": "gpt", "overrides": []}}
        answer = start_workers(jobs, Namespace(config="tiny.yaml", warmup=1, steps=12), stack)["mine"]()
        assert len(answer["milliseconds"]) == 12  # more steps than an evaluation interval
        assert (answer["dtype"], answer["blocks"]) == ("float32", "eager")
    assert not (workplace / "runs").exists()


@pytest.mark.skipif(not (find_spec("llama_cpp") and find_spec("gguf")), reason="llama-cpp-python or gguf is missing")
@pytest.mark.parametrize("changes", [{}, {"n_kv_head": 2}, {"tie_weights": True}], ids=str)
def test_llama_cpp_gives_our_logits(changes: dict[str, object]) -> None:
    model = sharp_model(**LLAMA, **changes)
    with ExitStack() as stack:
        peer = LlamaCpp(model, "F32", sys.executable, stack)
        check_agreement("llama.cpp", peer.logits, model, 1e-4)
        ticks = peer.decode(torch.zeros(3, 4, dtype=torch.int64), SamplingParams(max_new_tokens=5), "F32")
    assert len(ticks) == 7
    assert sorted(ticks) == ticks
