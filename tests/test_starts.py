"""What comes before the first token, or before a look into a model, must not import torch's compiler."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys
from pathlib import Path

import torch

from gpt.checkpoint import load_trained
from gpt.config import ModelConfig
from gpt.inspection.tracing.hooks import tapped
from gpt.kernels.decoding.weights import lay_out_weights
from gpt.model import GPT
from gpt.model.skeleton import without_memory

CONFIGS = [
    ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=5, position=position)
    for position in ("learned", "sinusoidal", "rope")
]

def build_without_memory():
    with without_memory():
        [GPT(config) for config in CONFIGS]

def lay_out_for_decoding():
    [lay_out_weights(GPT(config).eval()) for config in CONFIGS]

def look_into_a_model_that_is_not_compiled():
    tapped(GPT(CONFIGS[0]), ["logits"], lambda name, x: x)(torch.zeros(1, 2, dtype=torch.long))

def load():
    load_trained(Path(sys.argv[1]), Path(sys.argv[1]).parent, torch.device("cpu"))

for step in (build_without_memory, lay_out_for_decoding, look_into_a_model_that_is_not_compiled, load):
    step()
    assert "torch._dynamo" not in sys.modules, step.__name__
"""


def test_no_step_imports_the_compiler(trained: Path) -> None:
    """It would cost a second."""
    command = [sys.executable, "-c", PROGRAM, str(trained / "runs" / "tiny")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
