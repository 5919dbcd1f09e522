"""`gpt sample`: generate text from a trained model, shown as it is generated."""

import argparse
import contextlib
import io
import json
import signal
import time
from functools import partial
from importlib import import_module
from itertools import islice
from random import randrange
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch, report
from gpt.cli.sampling_options import add_decoding_options, add_sampling_options, given_params, params_of
from gpt.cli.shared_options import (
    STANDARD_INPUT,
    add_checkpoint_options,
    add_number,
    add_weights_option,
    command,
    number,
    read_text,
    standard_input,
    to_path,
)
from gpt.config import SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.sections import SEEDS
from gpt.system.errors import GenerationError, GPTError
from gpt.system.progress import announced
from gpt.system.signals import handling

if TYPE_CHECKING:
    from gpt.data import Tokenizer
    from gpt.generation.runtime import Runtime

GROUP = 64
"""Sequences per batch."""
HELP = "Type a prompt, and the model continues it. Ctrl-C stops the text, Ctrl-D ends the session."


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    parser.set_defaults(device="cpu")  # whose kernels write faster than a GPU launches its own
    add_weights_option(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", help="text to continue; - reads standard input (default: a newline)")
    lines = "read several prompts from a UTF-8 file, one per line"
    source.add_argument("--prompts-file", type=to_path, metavar="FILE", help=lines)
    source.add_argument("--interactive", action="store_true", help="prompt repeatedly")
    add_sampling_options(parser)
    add_number(parser, "--num-samples", "samples per prompt", 1)
    add_number(parser, "--beam", "beam search with N hypotheses, best first", most=10_000)
    penalty = "with --beam: divide by length to this power (default: 1)"
    parser.add_argument("--length-penalty", type=number(0, kind=float), metavar="A", help=penalty)
    unknown = "what to do with characters outside the vocabulary (default: error)"
    parser.add_argument("--unknown", choices=("error", "replace", "drop"), default="error", help=unknown)
    add_decoding_options(parser)
    parser.add_argument("--stats", action="store_true", help="report the backend and tokens/s")
    parser.add_argument("--json", action="store_true", help="print one JSON object per sample")


@command(
    "sample",
    "Generate text from a trained model. Sampling parameters default to those of the run's configuration.",
    '--prompt "ROMEO:" --temperature 0.8 --top-k 40 --seed 7',
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    given = given_params(arguments)
    params_of(SamplingParams(), given)  # report a wrong value before importing torch
    _check_options(arguments)
    prompts = _read_prompts(arguments)

    load_torch()
    from gpt.checkpoint import load_trained
    from gpt.data import CharTokenizer
    from gpt.data.tokenizers import convert_newlines
    from gpt.generation.runtime import DecodeOptions, build_runtime
    from gpt.generation.text import encode_prompts
    from gpt.system.device import choose_device, keep_freed_memory

    keep_freed_memory()
    loaded = load_trained(arguments.checkpoint, arguments.runs, choose_device(arguments.device), arguments.weights)
    params = params_of(loaded.config.sample, given)
    if "seed" not in given and params.temperature > 0 and arguments.beam is None:
        params = params.model_copy(update={"seed": randrange(10**6)})
        report(f"with --seed {params.seed}" + (", and the next for each prompt" if arguments.interactive else ""))
    tokenizer = loaded.tokenizer
    if isinstance(tokenizer, CharTokenizer):
        tokenizer = CharTokenizer(tokenizer.itos, arguments.unknown)
    options = DecodeOptions(arguments.backend, arguments.kv_dtype)
    runtime = build_runtime(loaded.model, options, report=report)
    prompts = [] if arguments.interactive else [convert_newlines(prompt) for prompt in prompts]
    # a bad prompt is an error before anything is written
    encode_prompts(tokenizer, prompts, params, loaded.config.model.block_size)
    if loaded.folder != arguments.checkpoint:
        report(f"using {loaded.folder}")
    if arguments.interactive:
        return _converse(runtime, tokenizer, params)
    (_sample if arguments.beam is None else _beam)(arguments, runtime, tokenizer, prompts, params)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise GenerationError for an option without effect."""
    chosen = {name for name, value in vars(arguments).items() if value is not None and value is not False}
    if arguments.num_samples == 1:
        chosen.discard("num_samples")
    for_samples = {"stats", "logprobs", "num_samples"}
    sampling = {"temperature", *FILTERS, "repetition_penalty", "seed"}
    for mode, is_on, ignored in (
        ("--interactive", arguments.interactive, {"json", "beam"} | for_samples),
        ("--beam", arguments.beam is not None, sampling | for_samples),
        ("sampling, without --beam", arguments.beam is None, {"length_penalty"}),
        ("text output, without --json", not arguments.json, {"logprobs"}),
    ):
        if is_on and chosen & ignored:
            option = min(chosen & ignored).replace("_", "-")
            raise GenerationError(f"--{option} has no effect with {mode}; leave one of them out")


def _read_prompts(arguments: argparse.Namespace) -> list[str]:
    """Return the prompts, in order; GPTError: a file cannot be read, or holds no prompt."""
    if arguments.prompts_file is not None:
        from gpt.data.tokenizers import convert_newlines

        prompts = [line for line in convert_newlines(read_text(arguments.prompts_file)).split("\n") if line]
        if not prompts:
            raise GenerationError(f"{arguments.prompts_file} holds no prompt")
        return prompts
    return [read_text(STANDARD_INPUT) if arguments.prompt == "-" else arguments.prompt or ""]


def _sample(
    arguments: argparse.Namespace,
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    prompts: list[str],
    params: SamplingParams,
) -> None:
    """Generate `num_samples` continuations of every prompt, in batches of `GROUP`."""
    from gpt.cli.sample_writers import JSONWriter, TextWriter
    from gpt.generation.batch import TextBatch

    if params.seed + arguments.num_samples > SEEDS:
        raise GenerationError(
            f"--seed is {params.seed}, and sample i has this + i, which must be less than 2^32; take a smaller one"
        )
    requests = ((prompt, params.seed + i) for prompt in prompts for i in range(arguments.num_samples))
    first = True
    while group := list(islice(requests, GROUP)):
        starts, seeds = zip(*group, strict=True)
        start, tokens, writer = time.perf_counter(), 0, None
        for piece in TextBatch(runtime, tokenizer, starts, params, seeds):
            if writer is None:  # not before the first step, which may have something to say
                writer = JSONWriter(starts, seeds, tokenizer) if arguments.json else TextWriter(starts, first)
            writer.take(piece)
            tokens += piece.token is not None
        first = False
        if arguments.stats:
            seconds = time.perf_counter() - start
            report(f"{runtime.name}: {tokens} tokens, {tokens / seconds:,.0f} tokens/s")


def _beam(
    arguments: argparse.Namespace,
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    prompts: list[str],
    params: SamplingParams,
) -> None:
    """Print the hypotheses of a beam search for every prompt, best first."""
    from gpt.generation.beam import beam_search
    from gpt.generation.text import decode_text, encode_prompt, text_at_end

    block_size = runtime.model.config.block_size
    params = params.limited_to(tokenizer.vocab_size)
    ended = partial(text_at_end, tokenizer=tokenizer, params=params)
    penalty = 1.0 if arguments.length_penalty is None else arguments.length_penalty
    for prompt in prompts:
        ids = encode_prompt(tokenizer, prompt, params, block_size)
        room = block_size + 1 - len(ids) if params.overflow == "stop" else params.max_new_tokens
        length, runner = min(params.max_new_tokens, room), runtime.runner(arguments.beam)
        with announced(report, f"searching with {arguments.beam} beams"):
            found = beam_search(runner, ids, arguments.beam, length, penalty, ended, params.ids)
        for hypothesis in found:
            text = ended(hypothesis.tokens)
            if text is None:  # it goes on after the last token
                text = decode_text(tokenizer, hypothesis.tokens, params.stop)
            if arguments.json:
                row = {"prompt": prompt, "text": text, "logprob": hypothesis.logprob, "score": hypothesis.score}
                print(json.dumps(row, ensure_ascii=False))
            else:
                print(
                    f"{prompt}{text}\n[log-probability {hypothesis.logprob:.3f} nats, score {hypothesis.score:.4f}]\n"
                )


def _converse(runtime: "Runtime", tokenizer: "Tokenizer", params: SamplingParams) -> int:
    """Read prompts until the end of input, and continue each; with readline, arrow keys recall earlier ones.

    Raises:
        GPTError: standard input cannot be read.
    """
    from gpt.cli.sample_writers import TextWriter
    from gpt.generation.batch import TextBatch

    lines = standard_input()
    if isinstance(lines, io.TextIOWrapper):
        lines.reconfigure(errors="replace")  # treat invalid UTF-8 as an unknown character
    with contextlib.suppress(ImportError):
        import_module("readline")  # gives `input` a history
    report(HELP)
    with handling([signal.SIGINT], signal.default_int_handler):  # however often
        while True:
            try:
                prompt = input("> " if lines.isatty() else "")
            except EOFError:
                return 0
            except OSError as error:
                raise GPTError(f"cannot read standard input: {error.strerror}") from None
            except KeyboardInterrupt:
                print()
                continue
            try:
                batch = TextBatch(runtime, tokenizer, [prompt], params)
                writer = TextWriter([prompt])
                for piece in batch:
                    writer.take(piece)
            except GPTError as error:
                report(f"error: {error}")
                continue
            except KeyboardInterrupt:
                print()
            params = params.model_copy(update={"seed": (params.seed + 1) % SEEDS})
