"""`scripts/sample.py`: text from a trained model, shown as it is generated."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.cli.common import add_checkpoint_options, build_parser, report, run_command
from gpt.config import SamplingParams
from gpt.errors import GenerationError, GPTError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    arguments = _parse(argv)
    return run_command(lambda: _run(arguments))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(
        "Print what a trained model writes after a prompt. Options left out are those of the run's configuration.",
        'python scripts/sample.py --prompt "ROMEO:" --temperature 0.8 --top-k 40 --seed 7',
    )
    add_checkpoint_options(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", help="text to go on from; - reads standard input (default: a line end)")
    source.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a UTF-8 file")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="length of each text")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy, 1 the model's own distribution")
    parser.add_argument("--top-k", type=int, metavar="K", help="keep the K most likely tokens; 0: all")
    parser.add_argument("--top-p", type=float, metavar="P", help="keep the smallest set with probability P")
    parser.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the most likely one")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same text; sample i uses seed + i")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="number of texts (default: 1)")
    parser.add_argument("--greedy", action="store_true", help="always the most likely token: --temperature 0")
    parser.add_argument(
        "--unknown", choices=("error", "replace", "drop"), default="error", help="characters the model has never seen"
    )
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.num_samples < 1:
        raise GenerationError(f"--num-samples is {arguments.num_samples}, expected at least 1")
    chosen = _sampling_options(arguments)
    _check(SamplingParams(), chosen)
    prompt = _read_prompt(arguments)

    from gpt.checkpoint import load_trained
    from gpt.data import CharTokenizer
    from gpt.device import choose_device
    from gpt.generation import stream_text

    path = Path(arguments.checkpoint) if arguments.checkpoint else None
    loaded = load_trained(path, Path(arguments.runs), choose_device(arguments.device))
    if path is None:
        report(f"using {loaded.folder}")
    params = _check(loaded.config.sample, chosen)
    tokenizer = loaded.tokenizer
    if isinstance(tokenizer, CharTokenizer):
        tokenizer = CharTokenizer(tokenizer.itos, arguments.unknown)
    for index in range(arguments.num_samples):
        request = params.model_copy(update={"seed": params.seed + index})
        pieces = stream_text(loaded.model, tokenizer, prompt, request)
        if index:
            print("\n" + "-" * 20)
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        print()
    return 0


def _sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given on the command line."""
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.stop:
        given["stop"] = tuple(arguments.stop)
    if arguments.greedy:
        if given.get("temperature", 0) != 0:
            raise GenerationError(f"--greedy is temperature 0, but --temperature is {given['temperature']:g}")
        given["temperature"] = 0.0
    return given


def _check(base: SamplingParams, given: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams.model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        expected = first["msg"].replace("Input should be", "expected").replace("String should", "the text should")
        raise GenerationError(f"{option}: got {first['input']!r}, {expected}") from None


def _read_prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt == "-":
        return sys.stdin.read()
    if arguments.prompt_file is None:
        return arguments.prompt or ""
    try:
        return Path(arguments.prompt_file).read_text(encoding="utf-8")
    except OSError as error:
        raise GPTError(f"cannot read {arguments.prompt_file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise GPTError(f"{arguments.prompt_file} is not UTF-8 text (byte {error.start})") from None
