"""A process with two fake CUDA devices: runs scenarios in order, and prints as JSON what was wrong
with each.

    python -m fake_cuda.scenarios FOLDER LIBRARY...

The scenarios run in FOLDER; the libraries, of torch's core and of the no-op CUDA backend, are
loaded first.
"""

import contextlib
import copy
import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    for library in sys.argv[2:]:  # before anything imports torch
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fake_cuda.device import FakeCuda, Float32Matmul, HiddenSync, install
from gpt.cli import evaluate
from gpt.config import OptimConfig, SamplingParams
from gpt.config.sources import load_config
from gpt.data import CharTokenizer
from gpt.data.batches import StepBatch
from gpt.generation.batch import Batch, TextBatch
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.cuda_graphs import MAX_GRAPHS, ONE_CAPTURE, ReplayedCalls
from gpt.system.device import Compute
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from gpt.training.graphed_step import GraphedStepper
from gpt.training.loss import evaluate as mean_loss
from gpt.training.objective import TEACHER, Objective
from gpt.training.optimizers import build_optimizer
from gpt.training.step import Stepper
from gpt.training.train import Host, build_trainer
from tiny import CORPUS, sharp_model, tiny_config
from variants import VARIANTS, keys_of

CONFIG = """
run: {name: tiny, device: cuda, snapshots: false}
data: {source: file, path: corpus.txt}
model:
  {n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 32, block_size: 16,
   position: rope, norm: rmsnorm, qk_norm: true}
optim: {warmup_steps: 1}
train:
  {batch_size: 4, max_steps: 2, eval_interval: 2, log_interval: 2, sample_tokens: 2,
   eval_max_tokens: 50}
"""
EVERYTHING = (
    "model.dropout=0.1",
    "optim.name=muon",
    "optim.grad_clip=1.0",
    "train.grad_accum_steps=2",
)
ONCE = {"_load_state", "GPT._apply", "load_weights", "sample"}
"""Functions that copy from memory that is not pinned, at the start of a run or for a sample."""
DEVICE = torch.device("cuda:0")
TOKENIZER = CharTokenizer("\nabcdefghijklmnopqrstuv")
FILTERS = {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
IDX = torch.arange(32).view(2, 16) % 23
BATCHES = (
    StepBatch(IDX, IDX),
    StepBatch(IDX, IDX, {TEACHER: torch.full((2, 16, 23), 1 / 23)}),
)
Scenario = Callable[[FakeCuda], None]


def configured(*overrides: str) -> Any:
    Path("corpus.txt").write_text(CORPUS * 10, encoding="utf-8")
    Path("tiny.yaml").write_text(CONFIG, encoding="utf-8")
    return load_config(Path("tiny.yaml"), overrides)


def watched(device: FakeCuda, owner: type, name: str, float32: bool = True) -> Any:
    """Within, a method must not wait for the device, nor, unless it may, multiply in float32."""
    function = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        with device.refusing(waits=True, float32=not float32):
            return function(*arguments, **options)

    return mock.patch.object(owner, name, call)


def train(
    device: FakeCuda,
    name: str,
    dtype: str,
    *overrides: str,
    resume: str | None = None,
    end: int = 2,
) -> None:
    """Train: all of it is on the device, in the right types, and no step waits."""
    loaded = configured(
        f"run.name={name}", f"run.dtype={dtype}", f"train.max_steps={end}", *overrides
    )
    host = Host(read_settings(), print)
    trainer = build_trainer(loaded, host, resume=resume, allow_config_change=True)
    assert trainer.state.step == (2 if resume else 0)
    float32 = dtype == "float32"
    with (
        watched(device, Stepper, "step", float32),
        watched(device, GraphedStepper, "step", float32),
    ):
        state = trainer.run()
    place = torch.device("cuda", trainer.compute.device.index or 0)
    assert (state.step, state.evaluated_step) == (end, end)
    optimizer = trainer.stepper.optimizer
    parameters = list(trainer.model.parameters())
    tensors = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, Tensor)]
    assert {tensor.device for tensor in [*parameters, *tensors]} == {place}
    assert len(tensors) > 40
    gradients = [parameter.grad for parameter in parameters]
    assert {gradient.dtype for gradient in gradients if gradient is not None} == {torch.float32}
    assert all(gradient is not None for gradient in gradients)
    assert optimizer.optimizers["adamw"].defaults["fused"]
    of_torch = [(dtype, precision) for dtype, place, precision in device.matmuls if not place]
    # TF32
    assert {precision for _, precision in of_torch} == {"high" if dtype == "float32" else "highest"}
    assert torch.get_float32_matmul_precision() == "highest"
    if dtype != "float32":
        own = [dtype for dtype, place, _ in device.matmuls if place == "orthogonalize"]
        assert bool(own) is ("optim.name=muon" in overrides)
        assert {*own, *(dtype for dtype, _ in of_torch)} <= {torch.bfloat16, torch.float16}
    assert set(device.pageable) <= ONCE


def capture(device: FakeCuda, name: str) -> None:
    """Capture a step, also on a device that is not the current one: all of it is in the graph, no
    memory twice.
    """
    held: list[bool] = []
    plain = torch.cuda.graph

    def captured(*arguments: Any, **options: Any) -> Any:
        held.append(any(parameter.grad is not None for parameter in parameters))
        return plain(*arguments, **options)

    place = torch.device(name)
    model = GPT(tiny_config(n_layer=1)).to(place)
    parameters = list(model.parameters())
    optimizer = build_optimizer(model, OptimConfig(), place, torch.bfloat16)
    compute = Compute(place, torch.bfloat16, torch.bfloat16)
    objective = Objective(terms=(("z_loss", 0.1),))
    stepper = GraphedStepper(model, optimizer, compute, 1.0, objective)
    with mock.patch.object(torch.cuda, "graph", captured):
        stepper.step(0, 1e-3, [BATCHES[0]])
        first = set(device.streams)
        result = stepper.step(1, 1e-3, [BATCHES[0]])
    assert result.terms["z_loss"].device == place
    (graph,) = device.graphs
    assert set(device.streams) == first == {graph.stream}, (
        "what is captured ran on another stream before"
    )
    assert len(graph.operations) > 100
    assert held == [False], "the graph and the step before it both have gradients"
    assert torch.cuda.current_device() == 0


def replay(device: FakeCuda, name: str) -> None:
    """Call a function by a graph, also on a device that is not the current one: the first call, and
    the capture, run on one stream, and every call changes what stays, once.
    """
    place = torch.device(name)
    calls = ReplayedCalls(place, "a test", "do nothing")
    is_locked: list[bool] = []

    def add_one(key: str) -> Tensor:
        is_locked.append(ONE_CAPTURE.locked())
        total.copy_(total @ torch.eye(2, device=place) + 1)
        return total * 2

    with device.computing():
        total = torch.zeros(2, 2, device=place)
        results = [calls.call("first", add_one, "first").tolist()[0][0] for _ in range(4)]
        assert results == [2, 4, 6, 8]
        kept = calls.call("first", add_one, "first")
        calls.call("second", add_one, "second")
        # The result of one graph lies where another one computes.
        assert kept.tolist()[0][0] == 10
        calls.call("second", add_one, "second")
        assert kept.isnan().all()
        assert total.tolist()[0][0] == 7
    assert is_locked == [False, True, False, True]
    assert len(device.graphs) == 2
    assert all(graph.stream is device.graphs[0].stream for graph in device.graphs)
    assert set(device.streams) == {device.graphs[0].stream}
    assert torch.cuda.current_device() == 0


def replay_many(device: FakeCuda) -> None:
    """Call by more keys than graphs may be kept for: the oldest graph goes, and is made anew."""
    calls = ReplayedCalls(DEVICE, "a test", "do nothing")

    def double(key: int) -> Tensor:
        return number * 2

    with device.computing():
        number = torch.ones(1, device=DEVICE)
        for key in range(MAX_GRAPHS + 1):
            for _ in range(2):
                assert float(calls.call(key, double, key)) == 2
        assert len(device.graphs) == MAX_GRAPHS + 1
        for _ in range(3):
            assert float(calls.call(0, double, 0)) == 2
        assert len(device.graphs) == MAX_GRAPHS + 2
        assert len(calls._recordings) == MAX_GRAPHS


def fail_to_capture(device: FakeCuda) -> None:
    """Read in a capture: the message has the first error, not the one that closes the capture."""
    calls = ReplayedCalls(DEVICE, "a test", "do nothing")
    number = torch.ones(1, device=DEVICE)
    calls.call("key", float, number)
    said = ""
    try:
        calls.call("key", float, number)
    except DeviceError as error:
        said = str(error)
    first = "read: not permitted when a stream is captured"
    assert said == f"no CUDA graph of a test: {first}; do nothing", said
    assert not ONE_CAPTURE.locked()
    assert float(calls.call("other", number.sum)) == 1, "nothing can be called any more"


def decode_by_graphs(device: FakeCuda, name: str, batch: int, **given: object) -> None:
    """Write texts past the edge of the window by graphs, which are the CPU's: several tokens are
    sampled before any is read back, and a graph is captured for each number of texts.
    """
    values = {"max_new_tokens": 30, "temperature": 0.8, **given}
    params = SamplingParams.model_validate(values)
    prompts = [[2 + row % 20] * (1 + row % 5) for row in range(batch)]
    # The stand-in is slow, and several tokens are sampled only as long as nobody waits for them.
    patient = mock.patch("gpt.generation.burst.MAX_STREAM_DELAY", 1e9)
    with patient, device.computing():
        model = sharp_model(n_layer=1, n_embd=16, n_head=2, n_kv_head=1, position="rope")
        place = torch.device(name)
        texts = []
        for runtime in (Runtime(model), build_runtime(copy.deepcopy(model).to(place))):
            rows: list[list[object]] = [[] for _ in prompts]
            for chunk in Batch(runtime, prompts, params, range(batch)):
                assert chunk.token is not None
                rows[chunk.row].append(chunk.token.id)
            texts.append(rows)
    assert runtime.name == f"graph, fp32 cache, {name}"
    assert texts[1] == texts[0]
    assert device.graphs
    assert {graph.stream.device for graph in device.graphs if graph.stream} == {place}
    assert torch.cuda.current_device() == 0
    if batch == 1:  # the ends of several windows would read one token each
        reads = device.waits.count("GraphRunner._sample")
        assert 0 < reads < len(texts[0][0]) / 2


def decode_bf16_weights(device: FakeCuda) -> None:
    """Decode bf16 weights by graphs: no product of blocks or head is in float32."""
    model = quantize(sharp_model(n_layer=1, position="rope"), "bf16").to(DEVICE)
    # A copy of a fake tensor would belong to a copy of the device.
    with mock.patch("copy.deepcopy", lambda model: model):
        runtime = build_runtime(model, DecodeOptions(kv_dtype="bf16"))
    assert runtime.name == "graph, bf16 weights, bf16 cache, cuda:0"
    device.forget()
    params = SamplingParams(max_new_tokens=3)
    assert len(list(TextBatch(runtime, TOKENIZER, ["a", "bc"], params))) == 6
    # The stand-in writes attention with a mask out, in float32, which a device does not.
    layers = {dtype for dtype, place, _ in device.matmuls if place != "SDPACore.forward"}
    assert layers == {torch.bfloat16}


def decode_without_graphs(device: FakeCuda) -> None:
    """Decode a model that Python changes, which a replay would not run: by plain launches, with one
    line.
    """
    model = sharp_model(n_layer=1).to(DEVICE)
    model.h[0].register_forward_hook(lambda module, inputs, output: output * 0)
    lines: list[str] = []
    runtime = build_runtime(model, report=lines.append)
    assert runtime.name == "eager, fp32 cache, cuda:0"
    faster = "no graph backend, which launches its kernels faster"
    assert lines == [f"{faster}: it does not cover hooks, and h.0 has one"], lines
    try:
        build_runtime(model, DecodeOptions("graph"))
    except DeviceError as error:
        lines.append(str(error))
    assert lines[1:] == [
        "no graph backend: it does not cover hooks, and h.0 has one; take backend auto or eager"
    ]


def evaluate_run(device: FakeCuda) -> None:
    """Evaluate by the command, which waits once, whatever the number of batches."""
    for size in ("8", "64"):
        device.forget()
        assert (
            evaluate.main(
                ["--checkpoint", "runs/bfloat16", "--device", "cuda", "--batch-size", size]
            )
            == 0
        )
        assert device.waits.count("batch_losses") == 1


def move(device: FakeCuda) -> None:
    """Go on with two visible devices, then on the CPU: only the generator of the run's device
    counts.
    """
    restored: list[str] = []
    said: list[list[str]] = [[], []]
    change = ("train.max_steps=4", "run.name=bfloat16", "run.dtype=bfloat16", *EVERYTHING)
    with mock.patch.object(
        torch.cuda, "set_rng_state", lambda state, device: restored.append(str(device))
    ):
        for lines, place in zip(said, ("cuda", "cpu"), strict=True):
            loaded = configured(f"run.device={place}", *change)
            host = Host(read_settings(), lines.append)
            trainer = build_trainer(loaded, host, resume="auto", allow_config_change=True)
            trainer.run_folder.unlock()
    assert restored == ["cuda"]
    on_cuda, on_cpu = (
        [line.partition(" saved")[0] for line in lines if "dropout" in line] for lines in said
    )
    assert on_cuda == []
    assert on_cpu == ["another number of processes, or a run on another kind of device,"]


def decode(device: FakeCuda, options: DecodeOptions, **model: object) -> None:
    """Write texts past the edge of the window, of which no forward pass waits, and a token once,
    for itself.
    """
    runtime = build_runtime(GPT(tiny_config(n_layer=1, **model)).eval().to(DEVICE), options)
    prompts = ["abc", "a", "abcdefgh"]
    params = SamplingParams.model_validate(
        {"max_new_tokens": 20, "temperature": 0.8, "logprobs": 2, **FILTERS}
    )
    with watched(device, GPT, "forward"):
        assert len(list(TextBatch(runtime, TOKENIZER, prompts, params))) == 3 * 20
    plain = Batch(
        runtime,
        [TOKENIZER.encode(prompt).tolist() for prompt in prompts],
        SamplingParams(),
        [0, 1, 2],
    )
    plain.step()
    device.forget()
    plain.step()
    assert device.waits in (["sample_tokens"], ["GraphRunner._sample"])


def try_variants(device: FakeCuda) -> None:
    """Make a step, an evaluation and tokens of every choice of the architecture."""
    objective = Objective(
        logit_temperature=0.9, mtp_weights=(0.5, 0.25), mtp_steps=2, teacher_weight=0.5
    )
    for number, values in enumerate(VARIANTS):
        model = GPT(tiny_config(n_layer=1, dropout=0.1, **keys_of(values))).to(DEVICE)
        compute = Compute(
            DEVICE, (torch.float32, torch.bfloat16, torch.float16)[number % 3], torch.bfloat16
        )
        config = OptimConfig.model_validate({"name": ("adamw", "muon")[number // 2 % 2]})
        optimizer = build_optimizer(model, config, DEVICE, torch.bfloat16)
        Stepper(model, optimizer, compute, 1.0, objective=objective).step(
            0, 1e-3, [BATCHES[number % 2]]
        )
        mean_loss(model, iter([(IDX, IDX)]), compute)
        params = SamplingParams.model_validate({"max_new_tokens": 3, "logprobs": 2, **FILTERS})
        list(
            TextBatch(
                build_runtime(model.eval(), DecodeOptions("eager")), TOKENIZER, ["a", "bc"], params
            )
        )


def refuse(device: FakeCuda) -> None:
    """Do what none of the others may, and be refused."""
    x = torch.ones(2, 2, device=DEVICE)
    acts: tuple[tuple[type[Exception], Callable[[], object]], ...] = (
        (HiddenSync, lambda: float(x.sum())),
        (HiddenSync, x.cpu),
        (Float32Matmul, lambda: x @ x),
        (RuntimeError, lambda: x + torch.ones(2, 2)),
    )
    for error, act in acts:
        with device.refusing(float32=True):
            try:
                act()
            except error:
                continue
        raise AssertionError(f"no {error.__name__}")


LONGER = partial(train, resume="auto", end=3)
SCENARIOS: dict[str, Scenario] = {
    "bfloat16": lambda device: train(device, "bfloat16", "bfloat16", *EVERYTHING),
    "bfloat16 resumed": lambda device: LONGER(device, "bfloat16", "bfloat16", *EVERYTHING),
    "float16": lambda device: train(device, "float16", "float16", *EVERYTHING),
    "float16 resumed": lambda device: LONGER(device, "float16", "float16", *EVERYTHING),
    "adamw": lambda device: train(
        device, "adamw", "auto", "model.attention=reference", "model.position=learned"
    ),
    "float32": lambda device: train(device, "float32", "float32"),
    "second device": lambda device: train(device, "second", "bfloat16", "run.device=cuda:1", end=3),
    "a step is captured": lambda device: capture(device, "cuda:0"),
    "a step is captured on the second device": lambda device: capture(device, "cuda:1"),
    "a function is replayed": lambda device: replay(device, "cuda:0"),
    "a function is replayed on the second device": lambda device: replay(device, "cuda:1"),
    "graphs are kept up to a number": replay_many,
    "a capture fails": fail_to_capture,
    "graphs write a text": lambda device: decode_by_graphs(device, "cuda:0", 1),
    "graphs write on the second device": lambda device: decode_by_graphs(
        device, "cuda:1", 9, top_k=5, top_p=0.9, min_p=0.01, end_id=1
    ),
    "graphs compute logits in parts": lambda device: decode_by_graphs(
        device, "cuda:0", 66, logprobs=1, max_new_tokens=4
    ),
    "graphs sample in parts": lambda device: decode_by_graphs(
        device, "cuda:0", 66, temperature=0.0, max_new_tokens=12
    ),
    "bf16 weights": decode_bf16_weights,
    "hooks decode without graphs": decode_without_graphs,
    "an evaluation waits once": evaluate_run,
    "a run is moved": move,
    "eager": lambda device: decode(device, DecodeOptions("eager"), position="rope", n_kv_head=2),
    "bf16 cache": lambda device: decode(device, DecodeOptions("eager", kv_dtype="bf16")),
    "graphs with a bf16 cache": lambda device: decode(
        device, DecodeOptions("graph", kv_dtype="bf16"), position="rope"
    ),
    "variants": try_variants,
    "what is not allowed": refuse,
}
"""In their order: some read what others have saved."""


def main() -> None:
    """Report what was wrong with each scenario; an empty text: nothing."""
    os.chdir(sys.argv[1])
    device = FakeCuda()
    reports: dict[str, str] = {}
    install(device)
    with contextlib.redirect_stdout(sys.stderr), device:
        for name, run in SCENARIOS.items():
            device.forget()
            try:
                run(device)
                reports[name] = ""
            except Exception as error:
                lines = "".join(traceback.format_exception(error)).splitlines()
                reports[name] = "\n".join([f"{type(error).__name__}: {error}"[:2000], *lines[-60:]])
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
