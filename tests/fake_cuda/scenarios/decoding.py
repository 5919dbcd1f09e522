"""Text from a model on the device: backends, caches, commands, searches, scores."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from fake_cuda.device import FakeCuda
from fake_cuda.setting import configured
from gpt.cli import sample
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.environment import read_settings
from gpt.evaluation.scoring import score_text
from gpt.generation import Batch, DecodeOptions, build_runtime, complete
from gpt.generation.backends.compiled import CompiledBackend
from gpt.generation.backends.eager import CachedBackend
from gpt.generation.beam import beam_search
from gpt.generation.request import Request
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.training.setup import open_session
from recorded_graph import RecordedGraph
from tiny import tiny_config

TOKENIZER = CharTokenizer("\nabcdefghijklmnopqrstuv")
PROMPTS = ("abc", "a", "abcdefgh")
TOKENS = 10


def model_of(**changes: object) -> GPT:
    """A tiny model on the device."""
    return GPT(tiny_config(n_layer=1, **changes)).eval().to("cuda:0")


def watched(device: FakeCuda, backend: type[CachedBackend]) -> Any:
    """A context in which the step of a backend must not wait for the device."""
    step = backend._step

    def call(*arguments: Any) -> Any:
        with device.refusing(waits=True):
            return step(*arguments)

    return mock.patch.object(backend, "_step", call)


def decode(
    device: FakeCuda, options: DecodeOptions, prompts: Sequence[str] = PROMPTS, **model: object
) -> dict[str, Any]:
    """Some texts, past the edge of the window; with every filter, and with the waits of one token."""
    params = SamplingParams(
        max_new_tokens=TOKENS, temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=2
    )
    runtime = build_runtime(model_of(**model), options)
    RecordedGraph.replays = 0
    with watched(device, CachedBackend), watched(device, CompiledBackend):
        texts = complete(runtime.model, TOKENIZER, list(prompts), params, runtime=runtime)
    plain = Batch(runtime, [TOKENIZER.encode(prompt).tolist() for prompt in prompts], SamplingParams(), [0, 1, 2])
    plain.step()
    device.waits.clear()
    plain.step()
    return {
        "name": runtime.name,
        "tokens": [len(text.tokens) for text in texts],
        "waits of a token": dict(Counter(f"{event.place}: {event.what}" for event in device.waits)),
        "replays": RecordedGraph.replays,
    }


def rows_leave(device: FakeCuda, backend: str) -> dict[str, Any]:
    """Rows of a batch end one after the other."""
    runtime = build_runtime(model_of(), DecodeOptions(backend))
    engine = runtime.batch_engine(None, 3, SamplingParams())
    requests = [Request("", ids, SamplingParams()) for ids in ([1], [2, 3], [4])]
    for request in requests:
        engine.add(request)
    lengths = []
    for row in (0, 2, 1):
        lengths.append(len(engine.step()))
        engine.end(requests[row], "cancelled")
    return {"rows": lengths}


def searched(device: FakeCuda) -> dict[str, Any]:
    """Beam search and scores."""
    model = model_of(position="rope")
    runtime = build_runtime(model, DecodeOptions("eager"))
    found = beam_search(runtime.backend(SamplingParams()), [1, 2], 3, 4)
    score = score_text(model, TOKENIZER, "abcdefghijklmnopqrstuvabcdefgh", stride=4)
    return {"beams": [len(hypothesis.tokens) for hypothesis in found], "scored": len(score.logprobs)}


def narrowed(device: FakeCuda) -> dict[str, Any]:
    """Weights of fewer bits."""
    lengths = {}
    for weights in ("bf16", "int8", "int4"):
        model = quantize(GPT(tiny_config(n_layer=1)).eval(), weights).to("cuda:0")
        runtime = build_runtime(model, DecodeOptions("eager"))
        texts = complete(model, TOKENIZER, ["abc"], SamplingParams(max_new_tokens=3), runtime=runtime)
        lengths[weights] = len(texts[0].tokens)
    return lengths


def commands(device: FakeCuda) -> dict[str, Any]:
    """`scripts/sample.py` on a run that was trained on the device."""
    open_session(configured("train.max_steps=2"), read_settings(), print).run()
    options = ("--device", "cuda", "--max-new-tokens", "3", "--prompt", "It")
    kinds = {
        "auto": ("--stats",),
        "compiled": ("--backend", "compiled", "--num-samples", "2"),
        "no cache": ("--no-cache",),
        "beam": ("--beam", "2"),
        "int8": ("--weights", "int8", "--kv-dtype", "int8"),
    }
    return {name: sample.main([*options, *more]) for name, more in kinds.items()}


SCENARIOS: dict[str, Callable[[FakeCuda], dict[str, Any]]] = {
    "eager": lambda device: decode(device, DecodeOptions("eager"), position="rope", n_kv_head=2),
    "eager, rows of one length": lambda device: decode(device, DecodeOptions("eager"), ("ab", "cd", "ef")),
    "compiled": lambda device: decode(device, DecodeOptions("compiled"), position="rope", n_kv_head=2),
    "compiled, fp16 cache": lambda device: decode(device, DecodeOptions("compiled", kv_dtype="fp16")),
    "int8 cache": lambda device: decode(device, DecodeOptions("eager", kv_dtype="int8", prefill_chunk=3)),
    "no cache": lambda device: decode(device, DecodeOptions("eager", cache=False), position="sinusoidal"),
    "rows leave, eager": lambda device: rows_leave(device, "eager"),
    "rows leave, compiled": lambda device: rows_leave(device, "compiled"),
    "search": searched,
    "fewer bits": narrowed,
    "commands": commands,
}
"""By name, in the order in which they run."""
