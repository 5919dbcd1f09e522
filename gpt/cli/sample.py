"""`gpt sample`: generate text from a trained model, shown as it is generated."""

import argparse
import contextlib
import io
import json
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from random import randrange
from typing import TYPE_CHECKING, NamedTuple, TextIO

from gpt.cli.command import load_torch, report
from gpt.cli.draft import check_draft, load_draft
from gpt.cli.sample_options import add_options, check_options, given_params
from gpt.cli.shared_options import STANDARD_INPUT, command, read_text, standard_input
from gpt.config import SamplingParams
from gpt.config.ranges import SEEDS
from gpt.system.errors import GenerationError, GPTError, quoted
from gpt.system.invocation import command_line
from gpt.system.progress import announce_if_slow
from gpt.system.signals import handling

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded
    from gpt.data import Tokenizer
    from gpt.data.words import WordTokenizer
    from gpt.generation.beam import Hypothesis
    from gpt.generation.runtime import Runtime

BATCH_SIZE = 64
"""Most sequences computed side by side: more hardly raise the throughput, but need more memory."""
RANDOM_SEEDS = 10**6
"""Number of seeds that are drawn from: six digits are easily typed again."""
HELP = "Type a prompt, and the model continues it. Ctrl-C stops the text, Ctrl-D ends the session."


class Prompt(NamedTuple):
    """A prompt as it was given, and its token ids."""

    text: str
    ids: list[int]


@command(
    "sample",
    "Generate text from a trained model. "
    "Sampling parameters default to those of the run's configuration.",
    '--prompt "ROMEO:" --temperature 0.8 --top-k 40 --seed 7',
    add_options,
)
def main(arguments: argparse.Namespace) -> int:
    # A wrong option is reported before torch is imported, which takes seconds.
    given = given_params(arguments)
    check_options(arguments)
    text = _read_text(arguments)

    load_torch()
    from gpt.data import CharTokenizer
    from gpt.data.tokenizers import convert_newlines
    from gpt.generation.placement import load_for_decoding
    from gpt.generation.runtime import DecodeOptions, build_runtime
    from gpt.system.device import keep_freed_memory

    texts = _prompts_of(arguments, convert_newlines(text))  # line ends as a corpus has them
    keep_freed_memory()  # which makes every step faster
    options = DecodeOptions(arguments.backend, arguments.kv_dtype)
    loaded = load_for_decoding(
        arguments.checkpoint,
        arguments.runs,
        arguments.device,
        arguments.weights,
        options,
        report,
    )
    items = loaded.config.data.items
    if arguments.new and items == "none":
        raise GenerationError(
            f"--new is for lists, and {loaded.folder} was trained on running text; leave it out"
        )
    draft = None
    if arguments.draft is not None:
        small = load_draft(arguments.draft, arguments.runs)
        check_draft(small, loaded)
        draft = small.model.to(next(loaded.model.parameters()).device)
    params = loaded.config.sample.params().model_copy(update=given)
    is_random = params.temperature > 0 and arguments.beam is None
    if is_random and "seed" not in given:
        params = _with_random_seed(params, arguments.interactive)
    tokenizer = loaded.tokenizer
    if isinstance(tokenizer, CharTokenizer):
        # The same characters, with what --unknown says of others.
        tokenizer = CharTokenizer(tokenizer.itos, arguments.unknown)
    # Ids of the model that the tokenizer does not have are not sampled: they have no text.
    params = params.limited_to(tokenizer.vocab_size)
    runtime = build_runtime(loaded.model, options, report, draft)
    # All prompts are encoded before anything is written: a bad one may be in a later batch.
    prompts = _encode(arguments, loaded, tokenizer, texts, params)
    if loaded.folder != arguments.checkpoint:
        report(f"using {loaded.folder}")
    if arguments.interactive:
        _converse(runtime, tokenizer, params)
    elif items in ("lines", "paragraphs") and _wants_items(arguments):
        from gpt.cli.sample_items import known_items, write_items

        known = known_items(loaded, arguments.new)
        write_items(arguments, runtime, tokenizer, texts, params, known)
    elif arguments.beam is not None:
        _beam(arguments, runtime, tokenizer, prompts, params)
    else:
        _sample(arguments, runtime, tokenizer, prompts, params)
    return 0


def _encode(
    arguments: argparse.Namespace,
    loaded: "Loaded",
    tokenizer: "Tokenizer",
    texts: list[str],
    params: SamplingParams,
) -> list[Prompt]:
    """Return the prompts as the model reads them: as questions, if it has learned to answer."""
    from gpt.data.words import WordTokenizer
    from gpt.generation.text import encode_prompts

    if isinstance(tokenizer, WordTokenizer):
        _report_unknown_words(tokenizer, texts)
    if loaded.config.data.items == "pairs":
        return _encode_questions(arguments, loaded, tokenizer, texts, params)
    ids = encode_prompts(tokenizer, texts, params, loaded.config.model.block_size)
    return [Prompt(*pair) for pair in zip(texts, ids, strict=True)]


def _encode_questions(
    arguments: argparse.Namespace,
    loaded: "Loaded",
    tokenizer: "Tokenizer",
    texts: list[str],
    params: SamplingParams,
) -> list[Prompt]:
    """Return prompts that are questions, whose answers stand in lines of their own.

    Raises:
        GenerationError: there is no question.
    """
    from gpt.data.pairs import Message
    from gpt.generation.conversation import encode_conversation

    if arguments.interactive or texts == [""]:
        chat = command_line("chat", "--checkpoint", str(arguments.checkpoint))
        raise GenerationError(
            f"this model answers questions: ask one with --prompt, or talk with it: {chat}"
        )
    # As text, an answer stands in a line of its own, below the question; JSON has a key for each.
    line_end = "" if arguments.json else "\n"
    block_size = loaded.config.model.block_size
    prompts: list[Prompt] = []
    for text in texts:
        ids = encode_conversation(tokenizer, [Message("user", text)], params, block_size)
        prompts.append(Prompt(text + line_end, ids))
    return prompts


def _report_unknown_words(tokenizer: "WordTokenizer", texts: Sequence[str]) -> None:
    """Report the words of the prompts that the model reads as `<unk>`, where there are any."""
    from gpt.data.tokenizers import MAX_LISTED

    words = tokenizer.unknown_words("\n".join(texts))
    if not words:
        return
    listed = ", ".join(quoted(word) for word in words[:MAX_LISTED])
    num_more = len(words) - MAX_LISTED
    if num_more > 0:
        listed += f" and {num_more} more"
    report(f"warning: words outside the vocabulary are read as <unk>: {listed}")


def _wants_items(arguments: argparse.Namespace) -> bool:
    """Return whether a list is continued by whole items, each marked as known or new.

    A beam, log-probabilities and statistics are about texts of any kind, as `_sample` writes them.
    """
    return arguments.beam is None and arguments.logprobs is None and not arguments.stats


def _read_text(arguments: argparse.Namespace) -> str:
    """Return the text of the prompts as it was given; GPTError: a file cannot be read."""
    if arguments.prompts_file is not None:
        return read_text(arguments.prompts_file)
    if arguments.prompt == "-":
        return read_text(STANDARD_INPUT)
    return arguments.prompt or ""


def _prompts_of(arguments: argparse.Namespace, text: str) -> list[str]:
    """Return the prompts in a text, in order; none in a session, which asks for them.

    Raises:
        GenerationError: a file holds no prompt.
    """
    if arguments.interactive:
        return []
    if arguments.prompts_file is None:
        return [text]
    prompts = [line for line in text.split("\n") if line]
    if not prompts:
        raise GenerationError(f"{arguments.prompts_file} holds no prompt")
    return prompts


def _with_random_seed(params: SamplingParams, is_interactive: bool) -> SamplingParams:
    """Return parameters with a new seed, and report it, so that the text can be had again."""
    seed = randrange(RANDOM_SEEDS)
    later = ", and the next for each prompt" if is_interactive else ""
    report(f"with --seed {seed}{later}")
    return params.model_copy(update={"seed": seed})


def _sample(
    arguments: argparse.Namespace,
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    prompts: list[Prompt],
    params: SamplingParams,
) -> None:
    """Generate `num_samples` continuations of every prompt, in batches of `BATCH_SIZE`."""
    num_samples = arguments.num_samples or 1
    if params.seed + num_samples > SEEDS:
        raise GenerationError(
            f"--seed is {params.seed}, and sample i has this plus i, which must be below 2^32; "
            "take a smaller one"
        )
    seeds = range(params.seed, params.seed + num_samples)
    # A generator, since a million samples of many prompts would take much memory as a list.
    requests = _requests(prompts, seeds)
    is_first = True
    while True:
        batch = list(islice(requests, BATCH_SIZE))
        if not batch:
            break
        start = time.perf_counter()
        tokens = _write_batch(batch, runtime, tokenizer, params, arguments.json, is_first)
        seconds = time.perf_counter() - start
        is_first = False
        if arguments.stats:
            report(f"{runtime.name}: {tokens} tokens, {tokens / seconds:,.0f} tokens/s")
            if arguments.draft is not None:
                report(runtime.draft_experience.describe())


def _requests(prompts: Sequence[Prompt], seeds: Iterable[int]) -> Iterator[tuple[Prompt, int]]:
    """Yield each prompt with each seed."""
    for prompt in prompts:
        for seed in seeds:
            yield prompt, seed


def _write_batch(
    requests: list[tuple[Prompt, int]],
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    params: SamplingParams,
    as_json: bool,
    is_first: bool,
) -> int:
    """Generate a text for each prompt and seed, and write it; return the number of tokens."""
    from gpt.cli.sample_writers import JSONWriter, TextWriter
    from gpt.generation.batch import Batch

    texts = [prompt.text for prompt, _ in requests]
    ids = [prompt.ids for prompt, _ in requests]
    seeds = [seed for _, seed in requests]
    writer: JSONWriter | TextWriter | None = None
    tokens = 0
    for chunk in Batch(runtime, ids, params, seeds, tokenizer):
        if writer is None:
            # The prompt is written after the first step, which may have something to report.
            writer = JSONWriter(texts, seeds, tokenizer) if as_json else TextWriter(texts, is_first)
        writer.take(chunk)
        # A chunk without a token only says why its text ended.
        if chunk.token is not None:
            tokens += 1
    return tokens


def _beam(
    arguments: argparse.Namespace,
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    prompts: list[Prompt],
    params: SamplingParams,
) -> None:
    """Print the hypotheses of a beam search for every prompt, best first."""
    from gpt.generation.beam import BeamOptions, beam_search
    from gpt.generation.text import decode_text, text_at_end

    block_size = runtime.model.config.block_size
    ended = partial(text_at_end, tokenizer=tokenizer, params=params)
    length_penalty = 1.0 if arguments.length_penalty is None else arguments.length_penalty
    options = BeamOptions(arguments.beam, length_penalty, ended, params.ids)
    for prompt in prompts:
        length = params.max_new_tokens
        if params.overflow == "stop":
            # The last token needs no position: it is not read by the model any more.
            length = min(length, block_size + 1 - len(prompt.ids))
        runner = runtime.runner(arguments.beam)
        with announce_if_slow(report, f"searching with {arguments.beam} beams"):
            found = beam_search(runner, prompt.ids, length, options)
        for hypothesis in found:
            text = ended(hypothesis.tokens)
            if text is None:
                # The hypothesis has its full length, and would go on after its last token.
                text = decode_text(tokenizer, hypothesis.tokens, params.stop)
            _print_hypothesis(prompt.text, text, hypothesis, arguments.json)


def _print_hypothesis(prompt: str, text: str, hypothesis: "Hypothesis", as_json: bool) -> None:
    logprob = hypothesis.logprob
    score = hypothesis.score
    if as_json:
        row = {"prompt": prompt, "text": text, "logprob": logprob, "score": score}
        print(json.dumps(row, ensure_ascii=False))
    else:
        print(f"{prompt}{text}")
        print(f"[log-probability {logprob:.3f} nats, score {score:.4f}]\n")


def _converse(runtime: "Runtime", tokenizer: "Tokenizer", params: SamplingParams) -> None:
    """Read prompts until the end of input, and continue each.

    Raises:
        GPTError: standard input cannot be read.
    """
    from gpt.cli.sample_writers import TextWriter
    from gpt.generation.batch import TextBatch

    lines = standard_input()
    if isinstance(lines, io.TextIOWrapper):
        lines.reconfigure(errors="replace")  # invalid UTF-8 is an unknown character
    with contextlib.suppress(ImportError):
        import_module("readline")  # gives `input` a history, which arrow keys recall
    report(HELP)
    # Ctrl-C stops a text and not the session, however often it is pressed.
    with handling([signal.SIGINT], signal.default_int_handler):
        while True:
            try:
                prompt = _ask(lines)
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            try:
                batch = TextBatch(runtime, tokenizer, [prompt], params)
                writer = TextWriter([prompt])
                for chunk in batch:
                    writer.take(chunk)
            except GPTError as error:
                report(f"error: {error}")
                continue
            except KeyboardInterrupt:
                print()
            params = params.model_copy(update={"seed": (params.seed + 1) % SEEDS})


def _ask(lines: TextIO) -> str:
    """Read a prompt: after a > at a terminal, else the next line of standard input."""
    try:
        return input("> " if lines.isatty() else "")
    except OSError as error:
        raise GPTError(f"cannot read standard input: {error.strerror}") from None
