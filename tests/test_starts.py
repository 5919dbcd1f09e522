"""What comes before the first token and before a look into a model must not import torch's compiler.

It would cost a second each time.
"""

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys
from pathlib import Path

import torch

from gpt.checkpoint import load_trained
from gpt.config import ModelConfig
from gpt.inspection.tracing.hooks import with_hooks
from gpt.kernels.decoding.weights import lay_out_weights
from gpt.model import GPT
from gpt.model.meta import meta_device

CONFIGS = [
    ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=5, position=position)
    for position in ("learned", "sinusoidal", "rope")
]

def build_without_memory():
    with meta_device():
        [GPT(config) for config in CONFIGS]

def lay_out_for_decoding():
    [lay_out_weights(GPT(config).eval()) for config in CONFIGS]

def look_into_a_model_that_is_not_compiled():
    with_hooks(GPT(CONFIGS[0]), ["logits"], lambda name, x: x)(torch.zeros(1, 2, dtype=torch.long))

def load():
    load_trained(Path(sys.argv[1]), Path(sys.argv[1]).parent, torch.device("cpu"))

for step in (build_without_memory, lay_out_for_decoding, look_into_a_model_that_is_not_compiled, load):
    step()
    assert "torch._dynamo" not in sys.modules, step.__name__
"""


def run(program: str, folder: Path, *arguments: str) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert result.returncode == 0, result.stderr


def test_no_step_before_a_token_or_a_look_imports_the_compiler(trained: Path) -> None:
    run(PROGRAM, trained, str(trained / "runs" / "tiny"))
