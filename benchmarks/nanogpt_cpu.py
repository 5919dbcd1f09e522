"""nanoGPT's CPU recipe, there and here, in one call: wall time of the whole process, and the loss it ends with.

Both are judged by the same measure: the loss over the whole validation split, in blocks of 64.
Needs a checkout of nanoGPT and the real corpus (GPT_DATA_DIR, or it is downloaded).

    python benchmarks/nanogpt_cpu.py --nanogpt ../nanoGPT
"""

import argparse
import datetime
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpt.checkpoint import load_trained
from gpt.config import load_config
from gpt.data import Dataset, prepare
from gpt.device import Compute
from gpt.settings import read_settings
from gpt.training.evaluation import evaluate, full_batches

CONFIG = ROOT / "configs" / "shakespeare_nanogpt_cpu.yaml"
README_OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""Word for word what nanoGPT's README gives for a CPU."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="checkout of nanoGPT")
    arguments = parser.parse_args()
    if not (arguments.nanogpt / "train.py").is_file():
        sys.exit(f"error: {arguments.nanogpt} is not a checkout of nanoGPT; make bench NANOGPT=path")
    dataset = prepare(load_config(CONFIG).config.data, read_settings(), print)
    with tempfile.TemporaryDirectory() as folder:
        rows = [run_gpt(Path(folder), dataset), run_nanogpt(arguments.nanogpt, Path(folder), dataset)]
    for row in rows:
        print(f"{row['what']:>8}  {row['seconds']:6.1f} s  whole-validation loss {row['loss']:.4f} nats")
    about = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    print(json.dumps({**about, "runs": rows, "ratio": rows[1]["seconds"] / rows[0]["seconds"]}))


def run_gpt(folder: Path, dataset: Dataset) -> dict[str, Any]:
    """This package, its defaults included: evaluations, samples, checkpoints, TensorBoard."""
    seconds = timed([str(ROOT / "scripts" / "train.py"), "--config", str(CONFIG), f"run.dir={folder}"], ROOT)
    loaded = load_trained(folder / "shakespeare_nanogpt_cpu" / "last", folder, torch.device("cpu"))
    return {"what": "gpt", "seconds": seconds, "loss": loss_of(loaded.model, dataset)}


def run_nanogpt(checkout: Path, folder: Path, dataset: Dataset) -> dict[str, Any]:
    """nanoGPT from a copy, after its own preparation of the data, which is not timed."""
    copy = folder / "nanogpt"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    text = dataset.tokenizer.decode(dataset.train) + dataset.tokenizer.decode(dataset.val)
    data = copy / "data" / "shakespeare_char"
    (data / "input.txt").write_text(text, encoding="utf-8")
    timed(["prepare.py"], data)
    seconds = timed(["train.py", "config/train_shakespeare_char.py", *README_OPTIONS.split()], copy)
    spec = importlib.util.spec_from_file_location("nanogpt_model", copy / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    saved = torch.load(copy / "out-shakespeare-char" / "ckpt.pt", weights_only=True)
    model = module.GPT(module.GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    return {"what": "nanoGPT", "seconds": seconds, "loss": loss_of(AllLogits(model), dataset)}


class AllLogits(torch.nn.Module):
    """nanoGPT gives the logits of all positions only when it is given targets."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(idx, idx.contiguous())[0]
        return logits


def loss_of(model: torch.nn.Module, dataset: Dataset) -> float:
    """Mean loss over the whole validation split, in float32."""
    compute = Compute(torch.device("cpu"), torch.float32, compile=False)
    return evaluate(model, full_batches(dataset.val, 64, 128), compute).loss


def timed(command: list[str], folder: Path) -> float:
    """Wall seconds of a whole process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
