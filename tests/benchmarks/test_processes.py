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
from benchmarks.nanogpt import COMPILED, OUT, import_nanogpt, load_nanogpt
from benchmarks.processes import json_process, time_process
from benchmarks.training_step import start_workers
from gpt.config import SamplingParams
from gpt.system.errors import GPTError
from tiny import sharp_model

PYTHON = [sys.executable, "-c"]
FAILING = [*PYTHON, "import sys; print('a'); sys.exit('error: no room')"]
ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps({'got': json.loads(line)}), flush=True)"
LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "mlp_width": 96}


def test_process_is_timed_and_its_evaluations_are_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    code = "import time; print('step 1: val loss 2\\nstep 2'); time.sleep(0.3); print('other')"
    seconds, lines = time_process([*PYTHON, code], tmp_path, report=shown.append)
    assert shown == ["  step 1: val loss 2"]
    assert [line.text for line in lines] == ["step 1: val loss 2", "step 2", "other"]
    assert 0 < lines[0].seconds <= lines[2].seconds - 0.1 < seconds
    with pytest.raises(GPTError, match=r"ended with 1: no room$"):
        time_process(FAILING, tmp_path)


def test_process_is_asked_until_it_fails() -> None:
    with json_process("mine", [*PYTHON, ECHO]) as ask:
        assert ask(do="x") == {"got": {"do": "x"}}
    refusing = [*PYTHON, "import json; input(); print(json.dumps({'error': 'a mistake'}))"]
    dying = [*PYTHON, "import sys; sys.exit('error: no room')"]
    for command, message in ((refusing, "^mine: a mistake"), (dying, "^mine: .* no room$")):
        with json_process("mine", command) as ask, pytest.raises(GPTError, match=message):
            ask()


def test_trainer_itself_runs_and_nothing_is_left(workplace: Path) -> None:
    with ExitStack() as stack:
        jobs = {"mine": {"trainer": "gpt", "overrides": []}}
        answer = start_workers(jobs, Namespace(config="tiny.yaml", warmup=1, steps=12), stack)["mine"]()
        assert len(answer["milliseconds"]) == 12  # more steps than an evaluation interval
        assert (answer["dtype"], answer["blocks"]) == ("float32", "eager")
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize("prefix", ["", COMPILED])
def test_checkpoint_of_nanogpt_is_read_compiled_or_not(checkout: Path, prefix: str) -> None:
    module, shape = import_nanogpt(checkout), {"n_embd": 8, "vocab_size": 11, "block_size": 64}
    model = module.GPT(module.GPTConfig(**shape))
    weights = {prefix + name: value for name, value in model.state_dict().items()}
    (checkout / OUT).mkdir()
    torch.save({"model": weights, "model_args": shape}, checkout / OUT / "ckpt.pt")
    idx = torch.arange(5)[None]
    assert torch.equal(load_nanogpt(checkout)(idx), model(idx, idx)[0])


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
