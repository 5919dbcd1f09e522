"""`gpt chat`: talk in a terminal with a model that was trained on questions and answers."""

import argparse
import contextlib
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch, report
from gpt.cli.shared_options import (
    add_checkpoint_options,
    add_weights_option,
    command,
    number,
    standard_input,
)
from gpt.config import SamplingParams
from gpt.system.errors import ConfigError, GPTError
from gpt.system.signals import handling

if TYPE_CHECKING:
    from gpt.data import Tokenizer
    from gpt.data.pairs import Message
    from gpt.generation.runtime import Runtime

HELP = "Ask something. Ctrl-C stops an answer, an empty line begins anew, Ctrl-D ends."


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_weights_option(parser)
    parser.add_argument(
        "--temperature",
        type=number(0, kind=float),
        metavar="T",
        help="0: the most likely answer (default: the run's, usually 0)",
    )


@command(
    "chat",
    "Talk with a model that was trained on questions and answers, with the history of the talk.",
    "--checkpoint runs/faq",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    load_torch()
    from gpt.data import CharTokenizer
    from gpt.generation.placement import load_for_decoding
    from gpt.generation.runtime import DecodeOptions, build_runtime

    loaded = load_for_decoding(
        arguments.checkpoint,
        arguments.runs,
        arguments.device,
        arguments.weights,
        DecodeOptions(),
        report,
    )
    if loaded.config.data.items != "pairs":
        raise ConfigError(
            f"{loaded.folder} was not trained on questions and answers (data.items=pairs); "
            "continue its text with the command sample"
        )
    params = loaded.config.sample.params()
    if arguments.temperature is not None:
        params = params.model_copy(update={"temperature": arguments.temperature})
    tokenizer = loaded.tokenizer
    if isinstance(tokenizer, CharTokenizer):
        # A character that the model has never read does not keep it from answering.
        tokenizer = CharTokenizer(tokenizer.itos, "drop")
    runtime = build_runtime(loaded.model, report=report)
    report(f"using {loaded.folder}. {HELP}")
    _talk(runtime, tokenizer, params.limited_to(tokenizer.vocab_size))
    return 0


def _talk(runtime: "Runtime", tokenizer: "Tokenizer", params: SamplingParams) -> None:
    """Read questions until the end of input, and answer each with what was said before in view."""
    from gpt.data.pairs import Message

    with contextlib.suppress(ImportError):
        import_module("readline")  # gives `input` a history, which arrow keys recall
    history: list[Message] = []
    prompt = "> " if standard_input().isatty() else ""
    # Ctrl-C stops an answer and not the talk, however often it is pressed.
    with handling([signal.SIGINT], signal.default_int_handler):
        while True:
            try:
                question = input(prompt)
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            if not question.strip():
                history = []
                continue
            asked = [*history, Message("user", question)]
            try:
                answer = _answer(runtime, tokenizer, asked, params)
            except GPTError as error:
                report(f"error: {error}")
                continue
            except KeyboardInterrupt:
                print()
                continue
            history = [*asked, Message("assistant", answer)]


def _answer(
    runtime: "Runtime", tokenizer: "Tokenizer", asked: "list[Message]", params: SamplingParams
) -> str:
    """Write the answer to the last of some messages as it is generated, and return it."""
    from gpt.cli.sample_writers import escape_controls
    from gpt.generation.batch import Batch
    from gpt.generation.conversation import encode_conversation

    block_size = runtime.model.config.block_size
    ids = encode_conversation(tokenizer, asked, params, block_size)
    answer = ""
    for chunk in Batch(runtime, [ids], params, [params.seed], tokenizer):
        answer += chunk.text
        sys.stdout.write(escape_controls(chunk.text) if sys.stdout.isatty() else chunk.text)
        sys.stdout.flush()
    print()
    return answer
