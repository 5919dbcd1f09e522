"""`gpt sample --interactive`: read prompts and continue each."""

import contextlib
import io
import signal
import sys
from importlib import import_module

from gpt.cli.command import report
from gpt.cli.sample_writers import TextWriter
from gpt.cli.sampling_options import with_options
from gpt.cli.shared_options import standard_input
from gpt.config import SamplingParams
from gpt.config.sections import SEEDS
from gpt.config.strict_yaml import YAMLSyntaxError, parse_value
from gpt.data import Tokenizer
from gpt.generation import TextBatch
from gpt.generation.runtime import Runtime
from gpt.system.errors import GPTError
from gpt.system.signals import handling

HELP = """\
Type a prompt, and the model continues it. Ctrl-C stops the text, Ctrl-D ends the session.
  /temperature 0.7   set a sampling parameter: also /top_k, /top_p, /seed, /max_new_tokens ...
  /settings          show all parameters
  /help              show this"""


def run_interactive(runtime: Runtime, tokenizer: Tokenizer, params: SamplingParams) -> int:
    """Read prompts until the end of input; with readline, arrow keys recall earlier ones.

    Raises:
        GPTError: standard input cannot be read.
    """
    lines = standard_input()
    if isinstance(lines, io.TextIOWrapper):
        lines.reconfigure(errors="replace")  # treat invalid UTF-8 as an unknown character
    with contextlib.suppress(ImportError):
        import_module("readline")  # gives `input` a history
    report(HELP)
    with handling([signal.SIGINT], signal.default_int_handler):  # however often
        return _converse(runtime, tokenizer, params, "> " if lines.isatty() else "")


def _converse(runtime: Runtime, tokenizer: Tokenizer, params: SamplingParams, prompt: str) -> int:
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return 0
        except OSError as error:
            raise GPTError(f"cannot read standard input: {error.strerror}") from None
        except KeyboardInterrupt:
            print()
            continue
        try:
            if line.startswith("/"):
                params = _command(line[1:], params)
            else:
                _answer(runtime, tokenizer, line, params)
                params = with_options(params, {"seed": (params.seed + 1) % SEEDS})
        except GPTError as error:
            report(f"error: {error}")


def _command(line: str, params: SamplingParams) -> SamplingParams:
    """Return the parameters after a command such as `temperature 0.7`.

    Raises:
        GenerationError: the value is out of its range.
    """
    name, _, value = line.strip().partition(" ")
    name = name.replace("-", "_")
    if name == "settings":
        report("\n".join(f"  /{key} {getattr(params, key)}" for key in SamplingParams.model_fields))
    elif name in SamplingParams.model_fields and value:
        try:
            is_one_string = name == "stop" and not value.startswith("[")
            params = with_options(params, {name: (value,) if is_one_string else parse_value(value)})
        except YAMLSyntaxError as error:
            report(f"error: /{name}: {error}")
    elif name == "help":
        report(HELP)
    else:
        known = name in SamplingParams.model_fields
        report(f"error: /{name}: {'a value is missing' if known else 'unknown command'}\n{HELP}")
    return params


def _answer(runtime: Runtime, tokenizer: Tokenizer, prompt: str, params: SamplingParams) -> None:
    batch = TextBatch(runtime, tokenizer, [prompt], params)
    writer = TextWriter([prompt], sys.stdout)
    try:
        for piece in batch:
            writer.take(piece)
    except KeyboardInterrupt:
        print()
