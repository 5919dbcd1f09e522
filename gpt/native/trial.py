"""Compare tiny models by a library with PyTorch's, in a process of its own: the library may crash.

`python -m gpt.native.trial SOURCE CLASS LIBRARY ROUNDS` tries one library. The last line says what
was compared, or what differs; exit codes are those of `gpt.native.verdicts`.

`python -m gpt.native.trial` compares the libraries of all classes of this machine, and if all
agree, writes the fingerprint of the code that they were compared with.
"""

import copy
import ctypes
import gc
import json
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
from gpt.native.decoding.decoder import KV_KINDS, Decoder, TokenBatch, load_decoder, with_results
from gpt.native.decoding.weights import lay_out_weights
from gpt.native.fingerprint import (
    DECODING,
    FINGERPRINT,
    SAMPLING,
    TRAINING,
    changed_code,
    current,
)
from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.block import replace_blocks
from gpt.native.verdicts import EDITED, LOGITS_ONLY, MISMATCH
from gpt.system.device import Compute
from gpt.system.environment import read_settings
from gpt.system.processor import PROCESSORS, Processor, supported_processors

CPU_SECONDS = 120
"""Limit of a trial's processor time: a trial takes 5 s, and much more if threads wait forever."""
NUM_THREADS = 2
"""Threads of a trial: enough to share work, and few, since other processes want the cores too."""
PR_SET_DUMPABLE = 4
"""Operation of prctl(2) on Linux that decides whether a crash writes a core."""
BASE_MODEL = {"n_layer": 2, "n_head": 3, "n_embd": 96, "block_size": 70, "vocab_size": 67}
"""A tiny model, whose vocabulary and block size are no multiples of any vector's width."""
MODELS = (
    {"norm": "rmsnorm", "position": "rope", "mlp": "gelu", "qk_norm": True},
    {
        "norm": "layernorm",
        "position": "learned",
        "mlp": "swiglu",
        "n_embd": 64,
        "n_head": 1,
        "mlp_width": 112,
    },
    {"norm": "rmsnorm", "position": "sinusoidal", "mlp": "relu2", "n_head": 1, "dropout": 0.1},
    {
        "norm": "layernorm",
        "position": "rope",
        "mlp": "relu",
        "n_embd": 128,
        "n_head": 2,
        "block_size": 129,
    },
)
"""Changes of the tiny model, which together call every kernel, whole vectors and their ends."""
SAMPLING_PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 5, "repetition_penalty": 1.3},
    {"temperature": 1.1, "top_p": 0.8, "min_p": 0.05, "top_k": 50},
)
"""Parameters by which tokens are sampled: together they use every filter that the decoder has."""
TRAINING_TOLERANCES = {torch.float32: (2e-4, 2e-4), torch.bfloat16: (1.5, 0.2)}
"""Largest differences from PyTorch's numbers in float32, by the type of the kernels.

The first number is for the largest difference of an element, in standard deviations of all
elements, and the second for the norm of the difference relative to that of the tensor. In float32
rounding makes 2e-5 of an element; in bfloat16 it makes 0.59, at ReLU's kink, and 0.09 of the norm.
"""
KV_TOLERANCES = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.1}
"""Largest difference of a logit, in standard deviations of all, by the type of keys and values.

Rounding makes 2e-6, 0.01 and 0.05.
"""
ROUNDING = 1e-6
"""Difference of a cumulative probability by which a sampled token may miss its interval."""


def models() -> Iterator[tuple[str, GPT]]:
    """Yield models with weights so large that every part matters, and what they are called."""
    for number, changes in enumerate(MODELS):
        torch.manual_seed(number)
        model = GPT(ModelConfig.model_validate({**BASE_MODEL, **changes}))
        for parameter in model.parameters():
            is_gain = parameter.dim() == 1
            nn.init.normal_(parameter, mean=1.0 if is_gain else 0.0, std=0.1)
        yield f"model {number}", model


def training_difference(kernels: Kernels) -> str | None:
    """Return where logits or gradients by the kernels differ from PyTorch's, or None."""
    in_type_of_kernels = Compute(torch.device("cpu"), kernels.dtype)
    in_float32 = Compute(torch.device("cpu"), torch.float32)
    max_of_element, max_of_norm = TRAINING_TOLERANCES[kernels.dtype]
    for name, model in models():
        idx = torch.randint(model.vocab_size, (3, model.config.block_size + 1))
        native = copy.deepcopy(model)
        replace_blocks(native, kernels)
        # The first pass has dropout. Its result cannot be compared, since kernels have random
        # numbers of their own, but it shows whether a kernel crashes or hangs.
        _forward_and_backward(native, idx, in_type_of_kernels)
        found = _forward_and_backward(native.eval(), idx, in_type_of_kernels)
        expected = _forward_and_backward(model.eval(), idx, in_float32)
        for part, tensor in expected.items():
            of_element = _largest_difference(found[part], tensor)
            of_norm = float((found[part] - tensor).norm() / tensor.norm())
            # Comparisons with NaN are false, so that NaN is a difference too.
            is_close = of_element <= max_of_element and of_norm <= max_of_norm
            if not is_close:
                return (
                    f"{part} of {name} differed by {of_element:.2g} (norm {of_norm:.2g}) "
                    "from PyTorch's"
                )
    return None


def _forward_and_backward(model: GPT, idx: Tensor, compute: Compute) -> dict[str, Tensor]:
    """Return logits (B, T, V) of ids (B, T + 1), and the gradient of each parameter, by name."""
    model.zero_grad()
    with compute.autocast():
        logits = model(idx[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten())
    torch.autograd.backward(loss)
    results = {"the logits": logits.detach()}
    for name, parameter in model.named_parameters():
        # A parameter that `forward` does not use has no gradient.
        if parameter.grad is not None:
            results[f"the gradient of {name}"] = parameter.grad
    return results


def _largest_difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of an element, in standard deviations of the expected ones."""
    deviation = expected.std().clamp(min=1e-30)  # equal elements have none
    return float((found - expected).abs().max() / deviation)


def decoding_difference(
    library: ctypes.CDLL, processor: Processor, compares_samples: bool = True
) -> str | None:
    """Return where the logits of a decoder differ from PyTorch's, or None.

    Args:
        compares_samples: whether to compare the tokens that the decoder samples too.
    """
    # C++ has other functions for each format of weights, and for each type of keys and values. No
    # function has both, so that not all pairs are compared.
    formats = [(weights, "fp32") for weights in ("float32", *NAMES)]
    formats += [("float32", kv_dtype) for kv_dtype in KV_KINDS]
    for (name, model), (weights, kv_dtype) in product(models(), formats):
        model.eval()
        decoded = model if weights == "float32" else quantize(model, weights)
        laid_out = lay_out_weights(decoded, processor)
        decoder = Decoder(library, laid_out, sequences=2, kv_dtype=kv_dtype)
        difference = _logits_difference(decoder, decoded)
        # Comparisons with NaN are false: with `not`, NaN is a difference too.
        if not difference <= KV_TOLERANCES[kv_dtype]:
            return (
                f"the logits of {name} ({weights}, {kv_dtype} cache) differed by "
                f"{difference:.2g} from PyTorch's"
            )
        # Sampling is compared once for each format of weights: it reads nothing but logits, so that
        # other types of keys and values would call the same code.
        if compares_samples and kv_dtype == "fp32":
            reason = _sampling_difference(decoder, model.vocab_size)
            if reason is not None:
                return f"{reason} of {name} ({weights})"
    return None


def _logits_difference(decoder: Decoder, model: GPT) -> float:
    """Return the largest difference of a logit, in standard deviations of all.

    The text goes through the decoder as a prefill, a few tokens and a step; then the step is taken
    again, by a second sequence with a copy of the blocks of the first.
    """
    # 66 tokens take two blocks of 64 positions; the second part reaches from one into the other.
    idx = torch.randint(model.vocab_size, (1, 66))
    with torch.inference_mode():
        expected = model(idx)[0]  # (T, V)
    tokens = idx[0].tolist()
    parts: list[Tensor] = []
    for start, end in ((0, 61), (61, 65), (65, 66)):
        length = end - start
        sequences = [0] * length
        batch = TokenBatch(tokens[start:end], sequences, range(start, end))
        parts.append(decoder.forward(batch, wanted=range(length)))
    # The blocks of the second sequence follow those of the first. In each pair the first block
    # becomes a copy of the second.
    second = decoder.blocks_per_sequence
    decoder.copy_blocks([(second, 0), (second + 1, 1)])
    logits = torch.empty(model.vocab_size)
    # A step returns logits only with a request to sample from them; the token is not looked at.
    request = sample_in_c(sampling_in_c(SamplingParams()), 0.5, None, logits)
    decoder.step(TokenBatch([tokens[-1]], sequences=[1], positions=[65]), [0], [request])
    found = torch.cat((*parts, logits.unsqueeze(0)))
    return _largest_difference(found, torch.cat((expected, expected[-1:])))


def _sampling_difference(decoder: Decoder, vocab_size: int) -> str | None:
    """Return by which parameters a decoder samples other tokens than PyTorch would, or None.

    A token is right if its random number lies in the interval of cumulative probability that
    PyTorch gives it, by the logits of the decoder.
    """
    for fields in SAMPLING_PARAMS:
        params = SamplingParams.model_validate(fields)
        uniforms = torch.rand(2, 8)  # of two sequences and eight steps
        seen = torch.zeros(2, vocab_size, dtype=torch.uint8)
        seen[:, :9] = 1  # some tokens, so that the repetition penalty has an effect
        # A copy, since the decoder marks the tokens that it samples in the tensor that it is given.
        seen_before = seen.clone()
        newest = TokenBatch(tokens=[1, 2], sequences=[0, 1], positions=[0, 0])
        sampled, logits = decoder.generate(newest, uniforms, params, seen, keep_logits=True)
        assert logits is not None
        for step, rows in enumerate(logits):  # rows are (2, V)
            tokens = torch.tensor([ids[step] for ids in sampled]).unsqueeze(1)  # (2, 1)
            # The interval of a token ends at the sum of probabilities up to it.
            probabilities = _probabilities(rows, seen_before.bool(), params).double()  # (2, V)
            ends = probabilities.cumsum(dim=-1)
            begins = torch.cat((torch.zeros(2, 1), ends), dim=-1)
            uniform = uniforms[:, step : step + 1]
            is_above = begins.gather(1, tokens) <= uniform + ROUNDING
            is_below = uniform <= ends.gather(1, tokens) + ROUNDING
            if not bool((is_above & is_below).all()):
                return f"tokens sampled by {fields} differed from PyTorch's"
            seen_before = seen_before.scatter(1, tokens, 1)
    return None


def _probabilities(logits: Tensor, seen: Tensor, params: SamplingParams) -> Tensor:
    """Return the distributions (B, V) that tokens are sampled from.

    They are computed as in `gpt.generation.sampling`, which this package may not import.
    """
    penalty = params.repetition_penalty
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(seen, penalized, logits)
    if params.temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.size(-1))
    logits = logits / params.temperature
    for name, part in FILTERS.items():
        value = getattr(params, name)
        if value != part.off:
            logits = part.apply(logits, value)
    return logits.softmax(dim=-1)


def write_fingerprint() -> int:
    """Compare all classes of this machine with PyTorch; write the fingerprint if all agree.

    Returns:
        The exit code, 1 if one differs.
    """
    settings = read_settings()
    for processor in supported_processors(settings.processor):
        # With a processor given, libraries are loaded without the trial that this is itself.
        kernels = load_kernels(processor.matmul_dtype, settings, print, processor)
        difference = training_difference(kernels)
        if difference is None:
            library, of_decoder = load_decoder(settings, print, processor)
            difference = decoding_difference(library, of_decoder)
        print(f"{processor.name}: {difference or 'agrees with PyTorch'}")
        if difference is not None:
            return 1
    FINGERPRINT.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
    return 0


def main(source: str, name: str, library: str, rounds: str = "1") -> int:
    """Try a library for the class of processors of a name; return the exit code.

    Args:
        source: the library's source, whose folder says whether it trains or decodes.
        name: name of the class of processors.
        library: path of the library.
        rounds: how often everything is compared, a number as the command line gives it.
    """
    _limit_this_process()
    torch.set_num_threads(NUM_THREADS)
    trains = source.startswith("training")
    change = changed_code(TRAINING if trains else DECODING)
    if change is not None:
        print(f"{change}, so that the kernels cannot be compared with it")
        return EDITED
    # Code of sampling that was edited cannot be compared; PyTorch then samples, so that the logits
    # of the library are all that is used.
    compares_samples = changed_code(SAMPLING) is None
    opened = open_library(Path(library))
    processor = PROCESSORS[name]
    for _ in range(int(rounds)):
        if trains:
            difference = training_difference(Kernels(opened, processor))
        else:
            difference = decoding_difference(with_results(opened), processor, compares_samples)
        if difference is not None:
            print(difference)
            return MISMATCH
    if trains:
        print("logits and gradients")
    else:
        print("logits and tokens" if compares_samples else LOGITS_ONLY)
    return 0


def _limit_this_process() -> None:
    """End this process when it has taken too much processor time, and let a crash leave no core."""
    # Some systems have no such limits, and Windows no module for them.
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if soft == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, hard))
        # A limit of 0 bytes would not do: a program of the system may collect cores all the same.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


if __name__ == "__main__":
    code = main(*sys.argv[1:]) if sys.argv[1:] else write_fingerprint()
    # Objects are not collected at exit, which would take longer than ending the process.
    gc.freeze()
    sys.exit(code)
