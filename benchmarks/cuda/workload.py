"""How much the stages measure: the full amount, or so little that a test can run every stage on a CPU."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """What the stages train, decode and compare.

    Attributes:
        device: cuda or cpu.
        data: overrides of every recipe that choose the corpus.
        overrides: further overrides of every recipe.
        equality_steps: steps whose losses are compared with the CPU's.
        greedy_tokens: length of the texts that are compared.
        backends: of ours that decode.
        shapes: layers/heads/width of decoded models.
        window: block_size of decoded models.
        batches: numbers of sequences decoded at once.
        tokens: sampled after each prompt.
        rounds: of decoding.
        nanogpt: a checkout, or None.
        nanogpt_options: further options of its train.py.
        tests: pytest's -k expression; empty: all tests run.
        matmul_size: of the square matmul that utilization is measured against.
    """

    device: str = "cuda"
    data: Overrides = ()
    overrides: Overrides = ()
    equality_steps: int = 100
    greedy_tokens: int = 200
    backends: tuple[str, ...] = ("eager", "compiled")
    shapes: tuple[str, ...] = ("6/6/384", "12/12/768")
    window: int = 256
    batches: tuple[int, ...] = (1, 8, 64, 512)
    tokens: int = 240
    rounds: int = 3
    nanogpt: Path | None = None
    nanogpt_options: Overrides = ()
    tests: str = ""
    matmul_size: int = 8192


FULL = Workload()
TINY = Workload(
    device="cpu",
    data=("data.source=file", f"data.path={ROOT / 'LICENSE'}"),
    overrides=(
        *("model.n_layer=1", "model.n_head=2", "model.n_embd=32", "model.block_size=32"),
        *("train.max_steps=4", "train.batch_size=2", "train.eval_interval=2", "train.log_interval=1"),
        *("train.eval_max_tokens=200", "optim.warmup_steps=0", "optim.decay_steps=2", "train.sample_tokens=4"),
        *("run.compile=false", "run.dtype=float32", "run.kernels=torch"),
    ),
    equality_steps=4,
    greedy_tokens=8,
    backends=("eager",),
    shapes=("1/2/32",),
    window=32,
    batches=(1, 2),
    tokens=8,
    rounds=1,
    nanogpt_options=(
        *("--compile=False", "--device=cpu", "--max_iters=4", "--eval_interval=2", "--eval_iters=2"),
        *("--n_layer=1", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=2", "--log_interval=1"),
        "--always_save_checkpoint=True",
    ),
    tests="views or beams",
    matmul_size=64,
)
WORKLOADS = {"full": FULL, "tiny": TINY}
