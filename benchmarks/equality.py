"""`scripts/bench.py train equality`: a device compared with the CPU, by losses in float32 and greedy texts."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cli_options import add_count, add_measurement, add_variants, at_least, check_overrides
from benchmarks.measure import describe, finish, make_table
from gpt.cli.command import report
from gpt.config import SamplingParams
from gpt.config.loading import load_config
from gpt.environment import read_settings

if TYPE_CHECKING:
    from gpt.generation import Completion

CLOSE = 1e-3
"""Log-probabilities nearer than that are a tie, which rounding decides."""
NOTE = "Losses in nats: AdamW's differ by float32 sums, from step to step more; Muon rounds its updates to bfloat16."
COLUMNS = {"measured": lambda row: row[0], "tolerance": lambda row: row[1]}


def add_parsers(subparsers: Any) -> None:
    summary = "Compare the losses of the first steps on a device with those on the CPU, and greedy texts."
    parser = add_measurement(subparsers, "train equality", summary, "--config configs/shakespeare.yaml run.device=cuda")
    add_variants(parser, ("eager", "compiled"), "eager,compiled")
    tolerance = "largest difference of a loss, in nats (default: 0.03, as of Muon; AdamW's is 0.0002)"
    parser.add_argument("--tolerance", type=at_least(0, float), default=3e-2, metavar="X", help=tolerance)
    add_count(parser, "--steps", 100, "steps whose losses are compared")
    add_count(parser, "--tokens", 200, "length of the texts")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train on both, and write texts; return 1 where a difference is beyond the tolerance."""
    from gpt.device import choose_device

    check_overrides(arguments)
    config = load_config(Path(arguments.config), arguments.overrides).config
    device, facts = choose_device(config.run.device).type, describe("train equality", arguments, config.run)
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        losses = {place: train(place, arguments, Path(folder)) for place in dict.fromkeys(("cpu", device))}
        texts = {kind: compare_texts(Path(folder), device, kind, arguments) for kind in arguments.variants}
    largest = max(abs(one - other) for one, other in zip(losses["cpu"], losses[device], strict=True))
    shown = (f"{largest:.2e}", f"{arguments.tolerance:.0e}")
    rows = {f"largest difference of {len(losses['cpu'])} losses": shown}
    rows |= {f"greedy texts, {kind}, that are equal": _counted(found) for kind, found in texts.items()}
    table = make_table(f"{arguments.config}: {device} compared with the CPU, float32", rows, COLUMNS, NOTE)
    problems = [] if largest <= arguments.tolerance else [f"losses differ by {largest:.2e} nats"]
    problems += [f"{kind}: {text['reason']}" for kind, found in texts.items() for text in found if not text["close"]]
    result = {**facts, "losses": losses, "largest": largest, "texts": texts}
    return finish(arguments, [table], result, [f"not equal: {problem}" for problem in problems])


def _counted(texts: Sequence[dict[str, Any]]) -> tuple[str, str]:
    return f"{sum(text['equal'] for text in texts)} of {len(texts)}", "all but ties"


def train(device: str, arguments: argparse.Namespace, folder: Path) -> list[float]:
    """Return the loss of each of the first steps on a device; the run stays in the folder, by its name."""
    from gpt.training.plan import Request
    from gpt.training.setup import open_session

    steps = arguments.steps
    loaded = load_config(
        Path(arguments.config),
        [
            *(*arguments.overrides, f"run.device={device}", f"run.dir={folder}", f"run.name={device}"),
            *("run.dtype=float32", "run.compile=false", "run.kernels=torch", "train.sample_tokens=0"),
            *(f"train.max_steps={steps}", f"train.eval_interval={steps}", "train.log_interval=1"),
            *("train.eval_first=false", "train.teacher=null", "optim.warmup_steps=2", "optim.decay_steps=null"),
        ],
    )
    open_session(Request(loaded, read_settings(), report)).run()
    rows = (json.loads(line) for line in (folder / device / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


def compare_texts(folder: Path, device: str, backend: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare greedy texts of the model that the CPU trained: there, eagerly, and on the device by a backend."""
    import torch

    from gpt.checkpoint import load_trained
    from gpt.corpora import prepare
    from gpt.generation import complete
    from gpt.generation.backends.selection import DecodeOptions, build_runtime

    loaded = load_trained(folder / "cpu", folder, torch.device("cpu"))
    val = prepare(loaded.config.data, read_settings(), report).val
    prompts = [loaded.tokenizer.decode(val[start : start + 16]) for start in range(0, len(val) - 16, len(val) // 4)]
    params = SamplingParams(temperature=0, max_new_tokens=arguments.tokens, logprobs=2)
    completions = []
    for place, kind in (("cpu", "eager"), (device, backend)):
        runtime = build_runtime(loaded.model.to(place), DecodeOptions(kind))
        completions.append(complete(loaded.model, loaded.tokenizer, prompts[:4], params, runtime=runtime))
    return [compare(one, other) for one, other in zip(*completions, strict=True)]


def compare(ours: "Completion", theirs: "Completion") -> dict[str, Any]:
    """Return whether two texts are equal, or differ first where the best two tokens were nearly as likely."""
    pairs = zip(ours.tokens, theirs.tokens, strict=True)
    place = next((i for i, (one, other) in enumerate(pairs) if one.id != other.id), None)
    if place is None:
        return {"equal": True, "close": True, "reason": ""}
    (_, best), (_, second) = ours.tokens[place].top[:2]
    lead = f"the best token leads by {best - second:.1e} nats"
    reason = f"the text after {ours.prompt!r} differs at token {place}, where {lead}"
    return {"equal": False, "close": best - second < CLOSE, "reason": reason}
