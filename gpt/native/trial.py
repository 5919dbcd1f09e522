"""`python -m gpt.native.trial SOURCE CLASS LIBRARY ROUNDS`: compare tiny models by a library with PyTorch's.

It is a process of its own, since the library may crash. The last line says what was compared, or what differs; exit
codes are those of `gpt.native.verdicts`. Without
arguments it compares the libraries of all classes of this machine, and if all agree, writes the fingerprint of the
code that they were compared with.
"""

import copy
import ctypes
import gc
import json
import operator
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig, SamplingParams
from gpt.config.filters import FILTERS
from gpt.model import GPT
from gpt.model.quantized import NAMES, quantize
from gpt.native.build import open_library
from gpt.native.decoding.c_structs import sample_in_c, sampling_in_c
from gpt.native.decoding.engine import KV_KINDS, Engine, load_engine, with_results
from gpt.native.decoding.weights import lay_out_weights
from gpt.native.fingerprint import DECODING, FINGERPRINT, SAMPLING, TRAINING, changed_code, current
from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.block import replace_blocks
from gpt.native.verdicts import DIFFERS, EDITED, LOGITS_ONLY
from gpt.system.device import Compute
from gpt.system.environment import read_settings
from gpt.system.processor import PROCESSORS, Processor, supported_processors

CPU_SECONDS = 120
"""Most processor time; more means that threads wait for each other for ever."""
MODELS = (
    {"norm": "rmsnorm", "position": "rope", "mlp": "gelu", "qk_norm": True},
    {"norm": "layernorm", "position": "learned", "mlp": "swiglu", "n_embd": 64, "n_head": 1, "mlp_width": 112},
    {"norm": "rmsnorm", "position": "sinusoidal", "mlp": "relu2", "n_head": 1, "dropout": 0.1},
    {"norm": "layernorm", "position": "rope", "mlp": "relu", "n_embd": 128, "n_head": 2, "block_size": 129},
)
"""Changes of a tiny model, which together call every kernel, whole vectors and ends."""
SAMPLED = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 5, "repetition_penalty": 1.3},
    {"temperature": 1.1, "top_p": 0.8, "min_p": 0.05, "top_k": 50},
)
TOLERANCES = {torch.float32: (2e-4, 2e-4), torch.bfloat16: (1.5, 0.2)}
"""Largest differences from PyTorch's numbers in float32, by type of kernels: of an element, relative to the deviation
of all, and the relative norm of all. Rounding brings 2e-5 of an element; in bfloat16 0.59, at ReLU's kink, and 0.09.
"""
KV_TOLERANCES = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.1}
"""The same of logits, by type of keys and values; rounding brings 2e-6, 0.01 and 0.05."""


def models() -> Iterator[tuple[str, GPT]]:
    """Yield models with weights so large that every part matters, and what they are called."""
    for number, changes in enumerate(MODELS):
        torch.manual_seed(number)
        shape = {"n_layer": 2, "n_head": 3, "n_embd": 96, "block_size": 70, "vocab_size": 67}
        model = GPT(ModelConfig.model_validate({**shape, **changes}))
        for parameter in model.parameters():
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.1)
        yield f"model {number}", model


def training_difference(kernels: Kernels) -> str | None:
    """Return where losses, logits or gradients by the kernels differ from PyTorch's; None: nowhere."""
    for name, model in models():
        idx = torch.randint(model.vocab_size, (3, model.config.block_size + 1))
        native = copy.deepcopy(model)
        replace_blocks(native, kernels)
        compute = Compute(torch.device("cpu"), kernels.dtype)
        _pass(native, idx, compute)  # with dropout, of which only the time can be compared
        found = _pass(native.eval(), idx, compute)
        right = _pass(model.eval(), idx, Compute(torch.device("cpu"), torch.float32))
        for part, value in right.items():
            distances = _distance(found[part], value), float((found[part] - value).norm() / value.norm())
            if not all(map(operator.le, distances, TOLERANCES[kernels.dtype])):
                return f"{part} of {name} differed by {distances[0]:.2g} from PyTorch's"
    return None


def _pass(model: GPT, idx: Tensor, compute: Compute) -> dict[str, Tensor]:
    model.zero_grad()
    with compute.autocast():
        logits = model(idx[:, :-1])
    torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten()))
    gradients = {f"the gradient of {name}": each.grad for name, each in model.named_parameters()}
    return {"the logits": logits.detach(), **{name: each for name, each in gradients.items() if each is not None}}


def _distance(found: Tensor, right: Tensor) -> float:
    return float((found - right).abs().max() / right.std().clamp(min=1e-30))


def decoding_difference(library: ctypes.CDLL, processor: Processor, samples: bool = True) -> str | None:
    """Return where logits by an engine, or if it `samples` tokens, differ from PyTorch's; None: nowhere."""
    formats = [*product(("float32", *NAMES), ("fp32",)), *product(("float32",), KV_KINDS)]  # C++ has each by itself
    for (name, model), (weights, kv_dtype) in product(models(), formats):
        model = model.eval() if weights == "float32" else quantize(model.eval(), weights)
        engine = Engine(library, lay_out_weights(model, processor), sequences=2, kv_dtype=kv_dtype)
        text = torch.randint(model.vocab_size, (1, 66))
        with torch.inference_mode():
            right = model(text)[0]
        tokens = text[0].tolist()
        parts = [tokens[:61], tokens[61:65], tokens[65:]]  # a prefill, a few tokens, and a step
        starts = (0, 61, 65)
        found = torch.cat(
            [
                engine.forward(part, [0] * len(part), range(start, start + len(part)), range(len(part)))
                for part, start in zip(parts, starts, strict=True)
            ]
        )
        of_each = engine.blocks_per_sequence
        engine.copy_blocks([(of_each, 0), (of_each + 1, 1)])  # the first sequence's to the second
        again = torch.empty(model.vocab_size)
        engine.step([tokens[-1]], [1], [65], [0], [sample_in_c(sampling_in_c(SamplingParams()), 0.5, None, again)])
        found = torch.cat((found, again[None]))
        right = torch.cat((right, right[-1:]))
        if not (distance := _distance(found, right)) <= KV_TOLERANCES[kv_dtype]:
            return f"the logits of {name} ({weights}, {kv_dtype} cache) differed by {distance:.2g} from PyTorch's"
        if samples and kv_dtype == "fp32" and (reason := _sampling_difference(engine, model.vocab_size)):
            return f"{reason} of {name} ({weights})"
    return None


def _sampling_difference(engine: Engine, vocab_size: int) -> str | None:
    for keys in SAMPLED:
        params, uniforms = SamplingParams.model_validate(keys), torch.rand(2, 8)
        seen = torch.zeros(2, vocab_size, dtype=torch.uint8)
        seen[:, :9] = 1
        given = [seen.clone()]
        found, logits = engine.generate([0, 1], [1, 2], [0, 0], uniforms, params, seen, keep_logits=True)
        assert logits is not None
        for step, rows in enumerate(logits):
            tokens = torch.tensor([each[step] for each in found]).unsqueeze(1)
            upper = _probabilities(rows, given[-1].bool(), params).double().cumsum(dim=-1)
            lower = torch.cat((torch.zeros(2, 1), upper), dim=-1).gather(1, tokens)
            uniform = uniforms[:, step : step + 1]
            if not bool(((lower <= uniform + 1e-6) & (uniform <= upper.gather(1, tokens) + 1e-6)).all()):
                return f"tokens sampled by {keys} differed from PyTorch's"
            given.append(given[-1].scatter(1, tokens, 1))
    return None


def _probabilities(logits: Tensor, seen: Tensor, params: SamplingParams) -> Tensor:
    """Return the distributions (B, V) that tokens are sampled from, as `gpt.generation.sampling` does."""
    penalized = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    logits = torch.where(seen, penalized, logits)
    if params.temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.size(-1))
    logits = logits / params.temperature
    for name, part in FILTERS.items():
        value = getattr(params, name)
        logits = logits if value == part.off else part.apply(logits, value)
    return logits.softmax(dim=-1)


def write_fingerprint() -> int:
    """Compare all classes of this machine with PyTorch, and write the fingerprint if they agree; else return 1."""
    settings, difference = read_settings(), None
    for processor in supported_processors(settings.processor):
        difference = training_difference(load_kernels(processor.matmul_dtype, settings, print, processor))
        difference = difference or decoding_difference(*load_engine(settings, print, processor))
        print(f"{processor.name}: {difference or 'agrees with PyTorch'}")
        if difference:
            return 1
    FINGERPRINT.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
    return 0


def main(source: str, name: str, library: str, rounds: str = "1") -> int:
    """Try a library; return the exit code."""
    _limit_this_process()
    torch.set_num_threads(2)
    trains = source.startswith("training")
    if edited := changed_code(TRAINING if trains else DECODING):
        print(f"{edited}, so that the kernels cannot be compared with it")
        return EDITED
    samples = changed_code(SAMPLING) is None
    opened = open_library(Path(library))
    for _ in range(int(rounds)):
        if trains:
            difference = training_difference(Kernels(opened, PROCESSORS[name]))
        else:
            difference = decoding_difference(with_results(opened), PROCESSORS[name], samples)
        if difference:
            print(difference)
            return DIFFERS
    of_engine = "logits and tokens" if samples else LOGITS_ONLY
    print("logits and gradients" if trains else of_engine)
    return 0


def _limit_this_process() -> None:
    """End this process when it has taken too much processor time, and let a crash leave no core."""
    with suppress(ImportError, OSError, ValueError):  # where a system has this
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if soft == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, hard))
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no core, also where a program collects them


if __name__ == "__main__":
    code = main(*sys.argv[1:]) if sys.argv[1:] else write_fingerprint()
    gc.freeze()  # as commands do
    sys.exit(code)
