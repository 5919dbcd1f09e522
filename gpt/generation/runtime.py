"""A model prepared for decoding: by the C++ decoder, by CUDA graphs, or by PyTorch alone."""

import copy
from dataclasses import dataclass

import torch

from gpt.data.tokenizers import Tokenizer
from gpt.generation.engine import FORK_HINT, Engine
from gpt.generation.graph_runner import GraphRunner, why_no_graph
from gpt.generation.kv_cache import KV_DTYPES
from gpt.generation.native_runner import NativeModel, NativeRunner
from gpt.generation.paged import BLOCK
from gpt.generation.runner import Runner, TorchRunner
from gpt.generation.speculation import Experience, SpeculativeRunner
from gpt.model import GPT
from gpt.model.quantized import BFLOAT16, weights_format
from gpt.native.decoding.decoder import load_decoder
from gpt.native.decoding.weights import lay_out_weights, unsupported_reason
from gpt.native.fingerprint import SAMPLING, changed_code
from gpt.system.device import require_own_threads
from gpt.system.environment import Settings, read_settings
from gpt.system.errors import DeviceError, GenerationError
from gpt.system.progress import Report, announce_if_slow, print_line, silent

BACKENDS = ("auto", "eager", "native", "graph")
"""`eager` is PyTorch; `native` the C++ engine, on a CPU; `graph` CUDA graphs of PyTorch's kernels.

`auto` is native on a CPU, and graph on a CUDA device, where they are available.
"""
EAGER_ONLY = "fp16"
NATIVE_ONLY = "int8"
"""Types of keys and values that only PyTorch has, with graphs or without, or only C++ has."""


@dataclass(frozen=True)
class DecodeOptions:
    """How logits are computed; the options change sampled tokens only by rounding.

    Attributes:
        backend: one of `BACKENDS`.
        kv_dtype: type of keys and values: fp32, bf16, fp16 (not native) or int8 (native only).
    """

    backend: str = "auto"
    kv_dtype: str = "fp32"

    def __post_init__(self) -> None:
        _require_known("backend", self.backend, BACKENDS)
        _require_known("kv_dtype", self.kv_dtype, (*KV_DTYPES, NATIVE_ONLY))
        unsupported_dtype = {"eager": NATIVE_ONLY, "graph": NATIVE_ONLY, "native": EAGER_ONLY}
        if unsupported_dtype.get(self.backend) == self.kv_dtype:
            raise GenerationError(
                f"the {self.backend} backend has no cache of {self.kv_dtype}; take another kv_dtype"
            )

    @property
    def allows_native(self) -> bool:
        return self.backend in ("auto", "native") and self.kv_dtype != EAGER_ONLY

    @property
    def allows_graphs(self) -> bool:
        return self.backend in ("auto", "graph") and self.kv_dtype != NATIVE_ONLY

    @property
    def requires_native(self) -> bool:
        return self.backend == "native" or self.kv_dtype == NATIVE_ONLY


class Runtime:
    """A model prepared for decoding, which makes runners and engines for it.

    Attributes:
        name: the backend, the types of weights and of the cache, and the device, for messages.
        draft_experience: how well drafts were accepted; unused without a draft.

    Args:
        native: what the C++ engine needs of the model; None if PyTorch computes it.
        report: see `build_runtime`.
        uses_graphs: whether PyTorch decodes in a static cache, on a CUDA device by graphs.
        draft: a small model that guesses tokens, see `SpeculativeRunner`.
    """

    def __init__(
        self,
        model: GPT,
        kv_dtype: str = "fp32",
        native: NativeModel | None = None,
        report: Report = silent,
        uses_graphs: bool = False,
        draft: "Runtime | None" = None,
    ) -> None:
        self.model = model
        self._draft = draft
        self.draft_experience = Experience()
        self._kv_dtype = kv_dtype
        self._native = native
        self._report = report
        self._uses_graphs = uses_graphs
        backend = "eager"
        if native is not None:
            backend = "native"
        elif uses_graphs:
            backend = "graph"
        # Messages name the weights and the device only where they are not the usual ones.
        facts = [backend]
        weights = weights_format(model)
        if weights != "float32":
            facts.append(f"{weights} weights")
        facts.append(f"{kv_dtype} cache")
        device = next(model.parameters()).device
        if device.type != "cpu":
            facts.append(str(device))
        self.name = ", ".join(facts)

    def engine(
        self,
        tokenizer: Tokenizer | None,
        max_sequences: int,
        prefill_chunk: int | None = None,
        blocks: int | None = None,
    ) -> Engine:
        """Return an engine for requests that join and leave; see `Scheduler`.

        Args:
            tokenizer: the tokenizer of the model; None if only token ids are wanted.
            max_sequences: how many sequences are computed at a time; other requests wait.
            prefill_chunk: how many tokens of prompts a step computes at most, so that a long prompt
                does not hold up the other sequences; None means no limit.
            blocks: number of blocks in the cache; None means enough for full windows of all
                sequences.

        Raises:
            DeviceError: this is a forked process with several threads.
            GenerationError: the blocks are too few for one window, or no sequences or tokens are
                allowed.
        """
        _require_positive("max_sequences", max_sequences)
        if prefill_chunk is not None:
            _require_positive("prefill_chunk", prefill_chunk)
        runner = self.runner(max_sequences, prefill_chunk, blocks)
        return Engine(runner, tokenizer, max_sequences, prefill_chunk)

    def runner(
        self, sequences: int, prefill_chunk: int | None = None, blocks: int | None = None
    ) -> Runner:
        """Return a runner for at most `sequences` sequences; `engine` explains the arguments.

        The runner makes room for `prefill_chunk` tokens of prompts in one pass, beside the next
        token of each sequence. More tokens take several passes.
        """
        target = self._own_runner(sequences, prefill_chunk, blocks)
        if self._draft is None:
            return target
        # The draft model gets blocks for full windows, since its keys and values are small. It has
        # no `prefill_chunk`: it reads a prompt when the first token of the answer is already there,
        # and then all of it at once.
        draft = self._draft.runner(sequences)
        return SpeculativeRunner(target, draft, self.draft_experience)

    def _own_runner(self, sequences: int, prefill_chunk: int | None, blocks: int | None) -> Runner:
        """Return a runner for the model itself, without its draft."""
        # A forked child has one thread of its parent's pool, and would wait for the others forever.
        require_own_threads(torch.get_num_threads(), FORK_HINT)
        blocks_of_window = -(-self.model.config.block_size // BLOCK)  # rounded up
        if blocks is None:
            blocks = sequences * blocks_of_window
        if blocks < blocks_of_window:
            raise GenerationError(
                f"{blocks} blocks of {BLOCK} positions; one window needs {blocks_of_window}"
            )
        if self._uses_graphs:
            return GraphRunner(self.model, sequences, blocks, KV_DTYPES[self._kv_dtype])
        if self._native is None:
            return TorchRunner(self.model, blocks, KV_DTYPES[self._kv_dtype])
        # The C++ decoder allocates memory for a number of tokens of each sequence: its next token
        # and an equal share of the tokens of prompts.
        prompt_tokens = 0 if prefill_chunk is None else prefill_chunk
        share = -(-prompt_tokens // sequences)  # rounded up
        return NativeRunner(
            self._native, sequences, 1 + share, self._kv_dtype, blocks, self._report
        )


def build_runtime(
    model: GPT,
    options: DecodeOptions | None = None,
    report: Report | None = None,
    draft: GPT | None = None,
) -> Runtime:
    """Prepare a model for decoding on this machine.

    Args:
        options: None means the fastest backend, with a cache of fp32.
        draft: a smaller model with the same token ids. It guesses tokens that the model then checks
            in one pass, see `gpt.generation.speculation`: the text is the same, and comes faster
            where the guesses are good.
        report: receives lines about compilation, and the reason why a native engine that this
            machine could have is not used. With None only what takes long is reported, on standard
            error.

    Raises:
        DeviceError: the native engine or graphs were asked for, or are needed for the cache, and
            are not available; or this is a forked process with several threads.
        GenerationError: the draft has another number of token ids.
    """
    options = options or DecodeOptions()
    draft_runtime: Runtime | None = None
    if draft is not None:
        if draft.vocab_size != model.vocab_size:
            raise GenerationError(
                f"the draft has {draft.vocab_size} token ids, the model {model.vocab_size}; "
                "take a draft with the same tokenizer"
            )
        draft_runtime = build_runtime(draft, options, report)
    hint = report or silent  # for lines that matter only to those who asked for reports
    report = report or print_line  # for what takes long, such as compiling
    # In a forked child the first computation of several threads would wait forever.
    require_own_threads(torch.get_num_threads(), FORK_HINT)
    device = next(model.parameters()).device
    if options.backend == "graph" or (device.type == "cuda" and options.allows_graphs):
        reason = why_no_graph(model)
        if reason is None:
            return graph_runtime(model, options.kv_dtype, draft_runtime)
        if options.backend == "graph":
            raise DeviceError(f"no graph backend: {reason}; take backend auto or eager")
        hint(f"no graph backend, which launches its kernels faster: {reason}")
    if not options.allows_native:
        return Runtime(model, options.kv_dtype, draft=draft_runtime)
    settings = read_settings()
    reason = why_not_native(model, settings, report)
    if reason is None:
        native = prepare_native(model, settings, report)
        return Runtime(model, options.kv_dtype, native, hint, draft=draft_runtime)
    if options.requires_native:
        remedy = "another kv_dtype" if options.kv_dtype == NATIVE_ONLY else "backend auto or eager"
        raise DeviceError(f"no native backend: {reason}; take {remedy}")
    # On a GPU PyTorch may be faster than the native engine, so no hint is given there.
    if device.type == "cpu":
        hint(f"no native backend, which is several times faster: {reason}")
    return Runtime(model, options.kv_dtype, draft=draft_runtime)


def graph_runtime(model: GPT, kv_dtype: str, draft: Runtime | None = None) -> Runtime:
    """Return a runtime that decodes by graphs; bf16 weights are multiplied in bfloat16."""
    if weights_format(model) == BFLOAT16:
        model = in_bfloat16(model)
    return Runtime(model, kv_dtype, uses_graphs=True, draft=draft)


def in_bfloat16(model: GPT) -> GPT:
    """Return a copy of a model that computes in bfloat16, with all its weights rounded to it.

    The tables of positions are buffers and not parameters, and stay in float32: rounded angles
    would misplace tokens.
    """
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.bfloat16()
    return copied


def why_not_native(model: GPT, settings: Settings, report: Report) -> str | None:
    """Return why the C++ decoder cannot compute a model on this machine; None if it can.

    The first call on a machine compiles the decoder, and tries it out in a child process.
    """
    reason = unsupported_reason(model)
    if reason is not None:
        return reason
    try:
        load_decoder(settings, report)
    except DeviceError as error:
        # Whether this machine can compile and run the decoder shows only when it is tried.
        return str(error)
    return None


def prepare_native(model: GPT, settings: Settings, report: Report) -> NativeModel:
    """Copy the weights of a model for the C++ decoder, after `why_not_native` has returned None."""
    library, processor = load_decoder(settings, report)
    with announce_if_slow(report, "copying the weights for the native engine"):
        weights = lay_out_weights(model, processor)
    return NativeModel(library, weights, edited_sampling=changed_code(SAMPLING))


def _require_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise GenerationError(f"{name} {value!r}: expected one of {', '.join(known)}")


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise GenerationError(f"{name} is {value}, expected at least 1")
