"""A process with a fake `cuda:0`: runs what it shows, and prints what came of it as one line of JSON.

    python -m fake_cuda.scenarios LIBRARY FOLDER

LIBRARY is what `fake_cuda.library.build` made; the scenarios run in FOLDER, in their order.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fake_cuda import library

if __name__ == "__main__":
    library.load(Path(sys.argv[1]))  # before anything imports torch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fake_cuda.device import FakeCuda
from fake_cuda.install import GENERATOR_STATE, install
from fake_cuda.refusals import NAMES
from gpt.api.displays import draw_attention
from gpt.cli import evaluate
from gpt.config import OptimConfig, SamplingParams, load_config
from gpt.data import CharTokenizer
from gpt.device import Compute
from gpt.environment import read_settings
from gpt.evaluation.loss import evaluate as mean_loss
from gpt.generation import Batch, DecodeOptions, build_runtime, complete
from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.model.layers import MLP
from gpt.training.averaging import WeightAverage
from gpt.training.compiling import compile_blocks
from gpt.training.distillation import Distillation, DistillBatch
from gpt.training.objective import cross_entropy
from gpt.training.optimizers import build_optimizer
from gpt.training.setup import Displays, open_session
from gpt.training.step import NonFiniteGuard, Stepper
from recorded_graph import RecordedGraph
from tiny import CORPUS, tiny_config
from variants import VARIANTS, keys_of

CONFIG = """
run: {name: tiny, device: cuda}
data: {source: file, path: corpus.txt}
model: {n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 32, block_size: 16, position: rope, norm: rmsnorm, qk_norm: true}
optim: {warmup_steps: 1}
train: {batch_size: 4, max_steps: 2, eval_interval: 2, log_interval: 2, sample_tokens: 2, eval_max_tokens: 50}
"""
EVERYTHING = ("model.dropout=0.1", "optim.name=muon", "optim.ema_decay=0.9", "optim.grad_clip=1.0")
EVERYTHING += ("train.grad_accum_steps=2",)
DEVICE = torch.device("cuda:0")
TOKENIZER = CharTokenizer("\nabcdefghijklmnopqrstuv")
FILTERS = {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
IDX = torch.arange(32).view(2, 16) % 23
BATCHES = ((IDX, IDX), DistillBatch(IDX, IDX, torch.full((2, 16, 23), 1 / 23)))
Facts = dict[str, Any]


def configured(*overrides: str) -> Any:
    Path("corpus.txt").write_text(CORPUS * 10, encoding="utf-8")
    Path("tiny.yaml").write_text(CONFIG, encoding="utf-8")
    return load_config(Path("tiny.yaml"), overrides)


@contextlib.contextmanager
def watched(device: FakeCuda, *methods: tuple[type, str], float32: bool = True) -> Iterator[None]:
    """Within, some methods must not wait for the device, nor, unless they may, multiply in float32."""

    def watch(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with device.refusing(waits=True, float32=not float32):
                return function(*arguments, **options)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name in methods:
            stack.enter_context(mock.patch.object(owner, name, watch(getattr(owner, name))))
        yield


def train(device: FakeCuda, name: str, dtype: str, *overrides: str, resume: str | None = None) -> Facts:
    """Train to the end; return where and in what everything is."""
    loaded = configured(f"run.name={name}", f"run.dtype={dtype}", *overrides)
    trainer = open_session(loaded, read_settings(), print, resume, True, displays=Displays(picture=draw_attention))
    begin = trainer.state.step
    with watched(device, (Stepper, "step"), (WeightAverage, "update"), float32=dtype == "float32"):
        state = trainer.run()
    optimizer, parameters = trainer.stepper.optimizer, list(trainer.model.parameters())
    tensors = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, Tensor)]
    return {
        "steps": [begin, state.step, state.evaluated_step],
        "devices": sorted({str(tensor.device) for tensor in [*parameters, *tensors]}),
        "states": len(tensors),
        "gradients": sorted({str(p.grad.dtype) for p in parameters if p.grad is not None}),
        "fused": optimizer.optimizers["adamw"].defaults["fused"],
        "matmuls": sorted({str(dtype) for dtype, place, _ in device.matmuls if place == "orthogonalize" or not place}),
        "precisions": sorted({precision for _, place, precision in device.matmuls if not place}),
        "precision afterwards": torch.get_float32_matmul_precision(),
        "pageable": sorted(set(device.pageable)),
    }


def evaluated(device: FakeCuda) -> Facts:
    """Evaluate by the command; how often it waits does not depend on the number of batches."""
    codes, waits = [], []
    for size in ("8", "64"):
        device.forget()
        codes.append(evaluate.main(["--checkpoint", "runs/bfloat16", "--device", "cuda", "--batch-size", size]))
        waits.append(device.waits.count("batch_losses"))
    return {"codes": codes, "waits": waits}


def moved(device: FakeCuda) -> Facts:
    """Go on with two visible devices, then on the CPU: which generators are restored, and what is said."""
    restored: list[str] = []
    said: list[list[str]] = [[], []]
    change = ("train.max_steps=4", "run.name=bfloat16", "run.dtype=bfloat16", *EVERYTHING)
    with (
        mock.patch.object(torch.cuda, "device_count", return_value=2),
        mock.patch.object(torch.cuda, "set_rng_state", lambda state, device: restored.append(str(device))),
    ):
        for lines, place in zip(said, ("cuda", "cpu"), strict=True):
            loaded = configured(f"run.device={place}", *change)
            trainer = open_session(loaded, read_settings(), lines.append, "auto", allow_config_change=True)
            trainer.run_folder.unlock()
    return {"restored": restored, "said": [[line for line in lines if "dropout" in line] for lines in said]}


def tried(device: FakeCuda) -> Facts:
    """Try compiled blocks with two visible devices: whose random numbers that undoes."""
    read: list[str] = []

    def state(of: object) -> Tensor:
        read.append(str(of))
        return GENERATOR_STATE

    with (
        mock.patch.object(torch.cuda, "device_count", return_value=2),
        mock.patch.object(torch.cuda, "get_rng_state", state),
        mock.patch.object(Block, "compile"),
    ):
        compile_blocks(GPT(tiny_config()).to(DEVICE), lambda: None, True, print)
    return {"read": read}


def decode(device: FakeCuda, options: DecodeOptions, **model: object) -> Facts:
    """Write texts past the edge of the window, of which no forward pass waits; note the waits of one token."""
    runtime = build_runtime(GPT(tiny_config(n_layer=1, **model)).eval().to(DEVICE), options)
    RecordedGraph.replays, prompts = 0, ["abc", "a", "abcdefgh"]
    params = SamplingParams.model_validate({"max_new_tokens": 20, "temperature": 0.8, "logprobs": 2, **FILTERS})
    with watched(device, (GPT, "forward")):
        texts = complete(runtime.model, TOKENIZER, prompts, params, runtime=runtime)
    plain = Batch(runtime, [TOKENIZER.encode(prompt).tolist() for prompt in prompts], SamplingParams(), [0, 1, 2])
    plain.step()
    device.forget()
    plain.step()
    return {
        "tokens": [len(text.tokens) for text in texts],
        "waits": list(device.waits),
        "replays": RecordedGraph.replays > 0,
    }


def variants(device: FakeCuda) -> Facts:
    """Make a step, an evaluation and tokens of every choice of the architecture, with each optimizer."""
    torch.use_deterministic_algorithms(True)
    for number, values in enumerate(VARIANTS):
        variant(keys_of(values), ("adamw", "muon")[number // 2 % 2], number)
    return {"steps": len(VARIANTS)}


def variant(changes: Facts, optimizer: str, number: int) -> None:
    model = GPT(tiny_config(n_layer=1, dropout=0.1, **changes)).to(DEVICE)
    compute = Compute(DEVICE, (torch.float32, torch.bfloat16, torch.float16)[number % 3], torch.bfloat16)
    optim = build_optimizer(model, OptimConfig.model_validate({"name": optimizer}), DEVICE, torch.bfloat16)
    objective = (cross_entropy, Distillation(0.5))[number % 2]
    Stepper(model, optim, compute, 1.0, objective=objective).step(0, 1e-3, [BATCHES[number % 2]])
    mean_loss(model, iter([(IDX, IDX)]), compute)
    runtime = build_runtime(model.eval(), DecodeOptions(("eager", "compiled")[number % 2]))
    params = SamplingParams(max_new_tokens=3, logprobs=2, **FILTERS)
    complete(model, TOKENIZER, ["a", "bc"], params, runtime=runtime)


def with_fault(owner: type, name: str, fault: Callable[..., Any], act: Callable[[], object]) -> Facts:
    """Do something while a method is replaced: `fault` gets the method and its arguments."""
    method = getattr(owner, name)
    with mock.patch.object(owner, name, lambda *arguments: fault(method, *arguments)):
        act()
    return {}


def float32_mlp(forward: Any, mlp: Any, x: Tensor) -> Tensor:
    with torch.autocast("cuda", enabled=False):
        return forward(mlp, x.float())


def fault_scenarios(device: FakeCuda) -> Iterator[tuple[str, Callable[[], Facts]]]:
    """Yield one fault of each kind, planted, with the function in which it is: it is to end with an error."""
    step = (NonFiniteGuard, "observe")
    read = lambda observe, guard, number, loss, norm: observe(guard, number, loss * float(loss), norm)  # noqa: E731
    copy = lambda observe, guard, number, loss, norm: observe(guard, number, loss.cpu(), norm)  # noqa: E731
    summed = lambda observe, guard, number, loss, norm: observe(guard, number, loss.view(1).cumsum(0)[0], norm)  # noqa: E731
    in_mlp = lambda forward, mlp, x: forward(mlp, x) * float(x.abs().max())  # noqa: E731
    yield "read in the training step", lambda: with_fault(*step, read, lambda: train(device, "read", "bfloat16"))
    yield "copy in the training step", lambda: with_fault(*step, copy, lambda: train(device, "copy", "bfloat16"))
    yield (
        "float32 in the training step",
        lambda: with_fault(MLP, "forward", float32_mlp, lambda: train(device, "wide", "bfloat16")),
    )
    for kind in ("eager", "compiled"):
        act = lambda kind=kind: decode(device, DecodeOptions(kind))  # noqa: E731
        yield f"read in a {kind} token", lambda act=act: with_fault(MLP, "forward", in_mlp, act)
    yield "refused in a deterministic step", lambda: with_fault(*step, summed, lambda: variant({}, "adamw", 0))


def scenarios(device: FakeCuda) -> dict[str, Callable[[], Facts]]:
    """Return them by name, in the order in which they run; the last but one sets torch's flag of determinism."""
    *faults, last = fault_scenarios(device)
    longer = (*EVERYTHING, "train.max_steps=3")
    return {
        "bfloat16": lambda: train(device, "bfloat16", "bfloat16", "train.attention_interval=1", *EVERYTHING),
        "bfloat16 resumed": lambda: train(device, "bfloat16", "bfloat16", *longer, resume="auto"),
        "float16": lambda: train(device, "float16", "float16", *EVERYTHING),
        "float16 resumed": lambda: train(device, "float16", "float16", *longer, resume="auto"),
        "adamw": lambda: train(device, "adamw", "auto", "model.attention=reference", "model.position=learned"),
        "float32": lambda: train(device, "float32", "float32"),
        "evaluate": lambda: evaluated(device),
        "moved": lambda: moved(device),
        "tried": lambda: tried(device),
        "eager": lambda: decode(device, DecodeOptions("eager"), position="rope", n_kv_head=2),
        "compiled": lambda: decode(device, DecodeOptions("compiled"), position="rope", n_kv_head=2),
        "int8 cache": lambda: decode(device, DecodeOptions("eager", kv_dtype="int8", prefill_chunk=3)),
        **dict(faults),
        "deterministic run": lambda: train(device, "deterministic", "bfloat16", "run.deterministic=true", *EVERYTHING),
        "variants": lambda: variants(device),
        **dict([last]),
        "names": lambda: {"names": NAMES},
    }


def main() -> None:
    """Report {"facts": ...} of a scenario that came to its end, {"error": ...} of another."""
    os.chdir(sys.argv[2])
    device, reports = FakeCuda(), dict[str, Facts]()
    install(device)
    with contextlib.redirect_stdout(sys.stderr), device:
        for name, run in scenarios(device).items():
            device.forget()
            try:
                reports[name] = {"facts": run()}
            except Exception as error:
                lines = "".join(traceback.format_exception(error)).splitlines()
                reports[name] = {"error": f"{type(error).__name__}: {error}"[:2000], "trace": lines[-60:]}
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
