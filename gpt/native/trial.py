"""Compare what a library computes for tiny models with what PyTorch computes.

`python -m gpt.native.trial SOURCE CLASS LIBRARY ROUNDS` tries one library, which may crash this
process. The last line of output says what was compared, or what differs; the exit codes are those
of `gpt.native.verdicts`. With `-` in place of them, the four words are read from standard input, as
a list in JSON.

`python -m gpt.native.trial` compares the libraries of all processor classes of this machine. If all
agree with PyTorch, it writes the fingerprint of the code that they were compared with.
"""

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
from gpt.native.decoding.decoder import (
    KV_KINDS,
    Decoder,
    TokenBatch,
    check_and_declare,
    load_decoder,
)
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
from gpt.native.training.native_model import LossWeights, NativeModel
from gpt.native.training.native_update import Updated, update_natively
from gpt.native.verdicts import EDITED, LOGITS_ONLY, MISMATCH
from gpt.system.environment import read_settings
from gpt.system.processor import PROCESSORS, Processor, supported_processors

CPU_SECONDS = 120
"""Limit of a trial's processor time: a trial takes 5 s, but never ends if its threads deadlock."""
NUM_THREADS = 2
"""Threads of a trial: two share work already, and other processes need cores too."""
PR_SET_DUMPABLE = 4
"""Operation of prctl(2) on Linux that decides whether a crash writes a core file."""
BASE_MODEL = {"n_layer": 2, "n_head": 3, "n_embd": 96, "block_size": 70, "vocab_size": 67}
"""A tiny model. Its vocabulary and block size are not multiples of the width of any vector."""
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
    # As GPT-2 is, but for the norm of keys, without which their bias has no gradient to compare.
    {
        "norm": "layernorm",
        "position": "learned",
        "mlp": "gelu_tanh",
        "bias": True,
        "qk_norm": True,
        "n_embd": 64,
        "n_head": 1,
    },
)
"""Changes of the tiny model: together they call every kernel, on whole and on partial vectors."""
SAMPLING_PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 5, "repetition_penalty": 1.3},
    {"temperature": 1.1, "top_p": 0.8, "min_p": 0.05, "top_k": 50},
)
"""Sampling parameters: together they use every filter that the decoder has."""
TRAINING_TOLERANCES = {torch.float32: (2e-4, 2e-4), torch.bfloat16: (1.5, 0.2)}
"""Largest accepted differences from PyTorch's results in float32, by the dtype of the kernels.

The first number limits the difference of each element, in standard deviations of all elements of
the tensor. The second limits the norm of the difference, relative to the norm of the tensor. In
float32 rounding changes an element by up to 2e-5; in bfloat16 it changes one by up to 0.59, at
ReLU's kink, and the norm by up to 0.09.
"""
KV_TOLERANCES = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.1}
"""Largest accepted difference of a logit, by the type of keys and values in the cache.

It is in standard deviations of all logits. Rounding makes differences of 2e-6, 0.01 and 0.05.
"""
LOSS_WEIGHTS = LossWeights(
    scale=0.01, temperature=0.9, later_weights=(0.5, 0.25), teacher_weight=0.3, z_weight=0.1
)
"""An objective with every part that the training kernels compute."""
IGNORED = -100
"""A target that does not count, as torch's cross-entropy takes it."""
ROUNDING = 1e-6
"""How far outside its interval of cumulative probability a sampled token's random number may be."""


def models() -> Iterator[tuple[str, GPT]]:
    """Yield the names and models of the trial, which have the same weights every time.

    The weights are so large that an error in any part of a model changes its logits.
    """
    for number, changes in enumerate(MODELS):
        torch.manual_seed(number)
        model = GPT(ModelConfig.model_validate({**BASE_MODEL, **changes}))
        for parameter in model.parameters():
            # Gains of norms are near 1 in trained models. Biases are vectors too, and get the same
            # mean.
            is_gain = parameter.dim() == 1
            nn.init.normal_(parameter, mean=1.0 if is_gain else 0.0, std=0.1)
        yield f"model {number}", model


def training_difference(kernels: Kernels) -> str | None:
    """Return the first result of the training kernels that differs from PyTorch's, or None."""
    max_element_difference, max_norm_ratio = TRAINING_TOLERANCES[kernels.dtype]
    for name, model in models():
        # One id more than a window has: the inputs are all but the last, the targets all but the
        # first.
        idx = torch.randint(model.vocab_size, (3, model.config.block_size + 1))
        native = NativeModel(model, kernels)
        # This first pass has dropout. Its results cannot be compared, since the kernels draw other
        # random numbers than PyTorch, but it shows whether a kernel crashes or hangs.
        native.compute_gradients(idx[:, :-1], idx[:, 1:])
        model.eval()
        found = _native_results(native, idx)
        expected = _torch_results(model, idx)
        for part, tensor in expected.items():
            element_difference = _largest_difference(found[part], tensor)
            norm_ratio = float((found[part] - tensor).norm() / tensor.norm())
            # Comparisons with NaN are false, so that a result with NaN is not close.
            is_close = element_difference <= max_element_difference and norm_ratio <= max_norm_ratio
            if not is_close:
                return (
                    f"{part} of {name} differed by {element_difference:.2g} "
                    f"(norm {norm_ratio:.2g}) from PyTorch's"
                )
    return _adamw_difference(kernels) or _muon_difference(kernels)


def _targets(idx: Tensor) -> Tensor:
    """Return the targets (B, T) of ids (B, T + 1): the ids one position later, some left out."""
    targets = idx[:, 1:].clone()
    targets[:, ::5] = IGNORED
    return targets


def _teacher_probabilities(model: GPT, idx: Tensor) -> Tensor:
    """Return the predictions (B, T, V) of a teacher for ids (B, T + 1).

    Half of the probability is on one token, and the other half is the same for all tokens.
    """
    likely = idx[:, 1:] * 7 % model.vocab_size  # mostly other tokens than the targets
    return F.one_hot(likely, model.vocab_size) * 0.5 + 0.5 / model.vocab_size


def _native_results(native: NativeModel, idx: Tensor) -> dict[str, Tensor]:
    """Return logits (B, T, V) of ids (B, T + 1), and the gradient of each parameter, by name."""
    logits = native.logits(idx[:, :-1])
    targets = _targets(idx)
    teacher = _teacher_probabilities(native.model, idx)
    # The batch is computed in two parts, to try that a call can add its gradients to those before.
    for rows, adds in ((slice(0, 2), False), (slice(2, 3), True)):
        native.compute_gradients(idx[rows, :-1], targets[rows], LOSS_WEIGHTS, teacher[rows], adds)
    gradients = {
        f"the gradient of {name}": tensor.clone() for name, tensor in native.gradients.items()
    }
    return {"the logits": logits, **gradients}


def _torch_results(model: GPT, idx: Tensor) -> dict[str, Tensor]:
    """Return what `_native_results` returns, computed by PyTorch in float32.

    The objective is written out, since this package may not import `gpt.training`.
    """
    model.zero_grad()
    logits = model(idx[:, :-1])  # (B, T, V)
    targets = _targets(idx)
    scaled = logits / LOSS_WEIGHTS.temperature
    log_probs = scaled.log_softmax(-1)
    loss = torch.zeros(())
    # Each position predicts the next token with weight 1, and the tokens after that with others.
    for distance, weight in enumerate((1.0, *LOSS_WEIGHTS.later_weights)):
        # The last positions have no target so far ahead.
        with_target = log_probs[:, : log_probs.size(1) - distance]
        loss = loss + weight * F.nll_loss(
            with_target.flatten(0, 1),
            targets[:, distance:].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
    teacher_loss = -(log_probs * _teacher_probabilities(model, idx)).sum()
    teacher_weight = LOSS_WEIGHTS.teacher_weight
    loss = (1 - teacher_weight) * loss + teacher_weight * teacher_loss
    log_z = scaled.logsumexp(-1)  # (B, T), log of the softmax's denominator
    loss = loss + LOSS_WEIGHTS.z_weight * (log_z.square() * (targets != IGNORED)).sum()
    torch.autograd.backward(LOSS_WEIGHTS.scale * loss)
    results = {"the logits": logits.detach()}
    for name, parameter in model.named_parameters():
        # A parameter that `forward` does not use has no gradient.
        if parameter.grad is not None:
            results[f"the gradient of {name}"] = parameter.grad
    return results


def _adamw_difference(kernels: Kernels) -> str | None:
    """Return how much the kernels' updates by AdamW differ from those of its formula, or None."""
    weight = torch.randn(40_000)  # so large that several threads share the work
    expected = weight.clone()
    rate = 0.1
    decay = 0.3
    eps = 1e-8
    beta_1, beta_2 = 0.8, 0.9
    group = {"lr": rate, "betas": (beta_1, beta_2), "eps": eps, "weight_decay": decay}
    first_moment = torch.zeros_like(weight)  # of the kernels
    second_moment = torch.zeros_like(weight)
    mean = torch.zeros_like(weight)  # of the formula
    square = torch.zeros_like(weight)
    step = torch.zeros(())  # `update_natively` counts the updates in it
    for number in range(1, 4):
        gradient = torch.randn_like(weight)
        updated = Updated(weight, gradient, first_moment, second_moment, step, group)
        update_natively(kernels, [updated])
        # AdamW is written out, since torch's own imports its compiler first, which takes a second.
        mean.lerp_(gradient, 1 - beta_1)
        square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        deviation = (square / (1 - beta_2**number)).sqrt() + eps
        expected.mul_(1 - rate * decay)
        expected.addcdiv_(mean / (1 - beta_1**number), deviation, value=-rate)
    difference = float((weight - expected).norm() / expected.norm())
    # Rounding alone makes a difference of 1e-7. `not` lets a difference of NaN fail too.
    if not difference <= 1e-5:
        return f"updates of AdamW differed by {difference:.2g} from those of its formula"
    return None


def _muon_difference(kernels: Kernels) -> str | None:
    """Return what is wrong with the kernels' update of a matrix by Muon, or None.

    The update has to be nearly orthogonal, and has to go against the gradient.
    """
    group = {"lr": 1.0, "weight_decay": 0.0, "steps": 5, "momentum": 0.9}
    for rows, columns in ((96, 64), (48, 160)):
        # The weights are zeros before the update. So afterwards they are the update itself.
        matrix = torch.zeros(rows, columns)
        gradient = torch.randn(rows, columns)  # the same in every trial, by the seed of `models`
        momentum = torch.zeros(rows, columns)
        updated = Updated(matrix, gradient, momentum, second_moment=None, step=None, group=group)
        update_natively(kernels, [updated])
        # Muon multiplies its rate by this factor, which is above 1 for tall matrices.
        factor = max(1.0, rows / columns) ** 0.5
        update = f"the update of Muon for a matrix {(rows, columns)}"
        # Checked first, since `svdvals` raises an error for NaN.
        if not bool(matrix.isfinite().all()):
            return f"{update} was not finite"
        values = torch.linalg.svdvals(matrix / factor)
        # The singular values of an orthogonal matrix are all 1. Muon's five iterations bring them
        # to between 0.7 and 1.2, and the limits leave a margin for rounding in bfloat16.
        is_orthogonal = bool((values > 0.5).all() and (values < 1.4).all())
        if not is_orthogonal:
            return f"{update} was not orthogonal"
        goes_down = bool((matrix * gradient).sum() < 0)
        if not goes_down:
            return f"{update} did not go against the gradient"
    return None


def _largest_difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of an element, in standard deviations of `expected`."""
    # The deviation of equal elements is 0, by which the difference cannot be divided.
    deviation = expected.std().clamp(min=1e-30)
    return float((found - expected).abs().max() / deviation)


def decoding_difference(
    library: ctypes.CDLL, processor: Processor, compares_samples: bool = True
) -> str | None:
    """Return which logits or sampled tokens of a decoder differ from PyTorch's, or None.

    Args:
        compares_samples: whether to compare the tokens that the decoder samples too.
    """
    # In C++ each format of weights has functions of its own, and so has each type of keys and
    # values. No function depends on both, so not every pair has to be tried.
    formats = [(weights, "fp32") for weights in ("float32", *NAMES)]
    formats += [("float32", kv_dtype) for kv_dtype in KV_KINDS]
    for (name, model), (weights, kv_dtype) in product(models(), formats):
        model.eval()
        decoded_model = model if weights == "float32" else quantize(model, weights)
        laid_out = lay_out_weights(decoded_model, processor)
        decoder = Decoder(library, laid_out, sequences=2, kv_dtype=kv_dtype)
        difference = _logits_difference(decoder, decoded_model)
        # Comparisons with NaN are false, so that a difference of NaN is not close.
        is_close = difference <= KV_TOLERANCES[kv_dtype]
        if not is_close:
            return (
                f"the logits of {name} ({weights}, {kv_dtype} cache) differed by "
                f"{difference:.2g} from PyTorch's"
            )
        # Sampling reads only logits, whatever the type of keys and values, so it is compared with
        # one type.
        if compares_samples and kv_dtype == "fp32":
            reason = _sampling_difference(decoder, model.vocab_size)
            if reason is not None:
                return f"{reason} of {name} ({weights})"
    return None


def _logits_difference(decoder: Decoder, model: GPT) -> float:
    """Return the largest difference of a logit, in standard deviations of all logits.

    The decoder reads a text in three parts: many tokens, a few tokens, and a step of one token.
    Then a second sequence, which has a copy of the first one's blocks, makes the same step.
    """
    # 66 tokens take two blocks of 64 positions, and the second part has tokens of both.
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
    # The blocks of the second sequence follow those of the first. A pair is a target and a source.
    first_block = decoder.blocks_per_sequence
    decoder.copy_blocks([(first_block, 0), (first_block + 1, 1)])
    logits = torch.empty(model.vocab_size)
    # `step` writes logits only where it samples a token. The token is not used here.
    sampling = sampling_in_c(SamplingParams())
    request = sample_in_c(sampling, uniform=0.5, seen=None, logits=logits)
    decoder.step(TokenBatch([tokens[-1]], sequences=[1], positions=[65]), [0], [request])
    found = torch.cat((*parts, logits.unsqueeze(0)))
    return _largest_difference(found, torch.cat((expected, expected[-1:])))


def _sampling_difference(decoder: Decoder, vocab_size: int) -> str | None:
    """Return a message if a decoder samples other tokens than PyTorch would, or None.

    PyTorch computes probabilities from the decoder's logits. A sampled token is correct if the
    random number that chose it lies in the token's interval of cumulative probability.
    """
    for fields in SAMPLING_PARAMS:
        params = SamplingParams.model_validate(fields)
        uniforms = torch.rand(2, 8)  # of two sequences and eight steps
        seen = torch.zeros(2, vocab_size, dtype=torch.uint8)
        seen[:, :9] = 1  # some tokens, so that the repetition penalty has an effect
        # A copy is needed, since `generate` marks in `seen` the tokens that it samples.
        seen_before = seen.clone()
        newest = TokenBatch(tokens=[1, 2], sequences=[0, 1], positions=[0, 0])
        sampled, logits = decoder.generate(newest, uniforms, params, seen, keep_logits=True)
        assert logits is not None
        for step, rows in enumerate(logits):  # rows are (2, V)
            tokens = torch.tensor([ids[step] for ids in sampled]).unsqueeze(1)  # (2, 1)
            probabilities = _probabilities(rows, seen_before.bool(), params).double()  # (2, V)
            # The interval of a token ends where that of the next token begins.
            ends = probabilities.cumsum(dim=-1)  # (2, V)
            begins = torch.cat((torch.zeros(2, 1), ends), dim=-1)  # (2, V + 1)
            uniform = uniforms[:, step : step + 1]
            is_above = begins.gather(1, tokens) <= uniform + ROUNDING
            is_below = uniform <= ends.gather(1, tokens) + ROUNDING
            if not bool((is_above & is_below).all()):
                return f"tokens sampled by {fields} differed from PyTorch's"
            seen_before = seen_before.scatter(1, tokens, 1)
    return None


def _probabilities(logits: Tensor, seen: Tensor, params: SamplingParams) -> Tensor:
    """Return the distributions (B, V) that tokens are sampled from.

    `gpt.generation.sampling` computes the same, but this package must not import it.

    Args:
        seen: (B, V) bool, True for tokens to which the repetition penalty applies.
    """
    penalty = params.repetition_penalty
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(seen, penalized, logits)
    if params.temperature == 0:  # greedy
        return F.one_hot(logits.argmax(dim=-1), logits.size(-1))
    logits = logits / params.temperature
    for name, sampling_filter in FILTERS.items():
        value = getattr(params, name)
        if value != sampling_filter.off:
            logits = sampling_filter.apply(logits, value)
    return logits.softmax(dim=-1)


def write_fingerprint() -> int:
    """Compare the libraries of all classes with PyTorch; write the fingerprint if all agree.

    Returns:
        The exit code, which is 1 if a library differs.
    """
    settings = read_settings()
    for processor in supported_processors(settings.processor):
        # If a class is given, `load_kernels` and `load_decoder` do not try the library themselves.
        kernels = load_kernels(processor.matmul_dtype, settings, print, processor)
        difference = training_difference(kernels)
        if difference is None:
            library, decoder_processor = load_decoder(settings, print, processor)
            difference = decoding_difference(library, decoder_processor)
        print(f"{processor.name}: {difference or 'agrees with PyTorch'}")
        if difference is not None:
            return 1
    FINGERPRINT.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
    return 0


def main(source: str, name: str, library: str, rounds: str = "1") -> int:
    """Try a library; return the exit code.

    Args:
        source: path of the library's source below `src`. Its folder says whether the library is for
            training or for decoding.
        name: name of the processor class that the library was compiled for.
        library: path of the library.
        rounds: how often to make all comparisons; the command line gives the number as a string.
    """
    _limit_this_process()
    torch.set_num_threads(NUM_THREADS)
    trains = source.startswith("training")
    change = changed_code(TRAINING if trains else DECODING)
    if change is not None:
        print(f"{change}, so that the kernels cannot be compared with it")
        return EDITED
    # If the code of sampling was edited, PyTorch samples from the logits of the library, so that
    # only the logits have to agree.
    compares_samples = changed_code(SAMPLING) is None
    loaded_library = open_library(Path(library))
    processor = PROCESSORS[name]
    for _ in range(int(rounds)):
        if trains:
            difference = training_difference(Kernels(loaded_library, processor))
        else:
            decoder_library = check_and_declare(loaded_library)
            difference = decoding_difference(decoder_library, processor, compares_samples)
        if difference is not None:
            print(difference)
            return MISMATCH
    if trains:
        print("logits and gradients")
    else:
        print("logits and tokens" if compares_samples else LOGITS_ONLY)
    return 0


def _limit_this_process() -> None:
    """Limit the processor time of this process, and let a crash write no core file."""
    # Windows has no module `resource`, and other systems may not allow the limit.
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        # A limit that the user has set stays.
        if soft == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, hard))
        # By this call Linux writes no core file. A limit of 0 bytes (RLIMIT_CORE) would have no
        # effect where Linux pipes cores to a program. Other systems have no prctl.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["-"]:
        words = json.load(sys.stdin)
    code = main(*words) if words else write_fingerprint()
    # Python does not search frozen objects for garbage at exit, which saves time.
    gc.freeze()
    sys.exit(code)
