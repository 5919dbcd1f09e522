"""`scripts/bench.py serve`: throughput and latency of the HTTP server under load."""

import argparse
import asyncio
import json
import math
import socket
import statistics
import string
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.cli_options import add_count, add_measurement, at_least, check_installed
from benchmarks.decode import config_of
from benchmarks.measure import Row, describe, finish, interleave, make_table, show_ratios
from benchmarks.processes import environment, failure, script_command
from gpt.cli.command import report
from gpt.config import Config, ModelConfig
from gpt.system.errors import ConfigError, GPTError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

ALPHABET = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
"""The 65 characters of Tiny Shakespeare."""
START_SECONDS = 120.0
"""How long the server may take to start."""
NOTE = (
    "Tokens/s: sampled tokens from the first request to the last answer, prompts included in\n"
    "the time; median of the rounds (lowest-highest). TTFT: time to first token, since the\n"
    "request was due. ITL: inter-token latency as the client sees it; tokens that arrive\n"
    "together share the time since those before. Both of all rounds together, in\n"
    "milliseconds. Of idle: p99 of TTFT over that of one request at a time."
)
COLUMNS = {
    "tokens/s": lambda row: show_ratios(row["tokens_per_second"], ",.0f"),
    "TTFT p50, ms": lambda row: f"{row['first_token_ms']['p50']:.1f}",
    "TTFT p99, ms": lambda row: f"{row['first_token_ms']['p99']:.1f}",
    "of idle": lambda row: f"{row['times_idle']:.2f}",
    "ITL p50, ms": lambda row: _inter_token(row, "p50"),
    "ITL p99, ms": lambda row: _inter_token(row, "p99"),
}


class Run(NamedTuple):
    """One load: how many requests are in flight (closed loop), or arrive per second (open loop)."""

    concurrency: int = 1
    rate: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.rate:.3g} requests/s" if self.rate else f"{self.concurrency} at a time"


IDLE = Run()
"""One request at a time."""
SETTINGS = (
    "shape",
    "device",
    "kv_dtype",
    "window",
    "prompt_lengths",
    "tokens",
    "concurrency",
    "requests",
    "rounds",
    "seed",
)
"""Options that are part of the result."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = add_measurement(
        subparsers,
        "serve",
        "Measure many requests at a time to the HTTP server.",
        "--concurrency 32 --rates 8 16",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="RUN",
        help="a run, by its name or path, instead of random weights",
    )
    parser.add_argument(
        "--shape",
        default="6/6/384",
        metavar="L/H/C",
        help="layers, heads and width of a model with random weights (default: 6/6/384)",
    )
    parser.add_argument(
        "--kv-dtype",
        choices=("fp32", "bf16", "int8"),
        default="fp32",
        help="of keys and values (default: fp32)",
    )
    parser.add_argument(
        "--device", default="cpu", help="where to decode, such as cuda (default: cpu)"
    )
    add_count(parser, "--window", 256, "block_size of the shape")
    add_count(
        parser,
        "--prompt-lengths",
        [16, 32, 64, 128],
        "characters; each prompt has one of them, at random",
    )
    add_count(parser, "--tokens", 120, "tokens sampled after each prompt")
    add_count(
        parser,
        "--concurrency",
        32,
        "requests in flight in the closed loop, which sends twice as many",
        lowest=2,
    )
    add_count(parser, "--requests", 150, "requests at each rate, in all rounds together")
    parser.add_argument(
        "--rates",
        type=at_least(0, float),
        nargs="+",
        metavar="R",
        help="requests per second of the open loop; 0: no open loop "
        "(default: half and 0.8 of the capacity)",
    )
    add_count(parser, "--rounds", 3, "rounds")
    add_count(parser, "--seed", 1, "of prompts and arrivals", lowest=0)
    parser.set_defaults(run=run, architecture="gpt2")  # the architecture is for `config_of`


def run(arguments: argparse.Namespace) -> int:
    """Measure closed loops first, then open loops, by default at rates that the server can keep up
    with.
    """
    check_installed("serve", "fastapi", "uvicorn", "h11")
    config = config_of(arguments.shape, arguments)

    import torch

    from gpt.checkpoint import load_trained

    facts = describe("serve", arguments)
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        path = arguments.checkpoint or write_random_model(config, Path(folder) / "random")
        loaded = load_trained(path, Path("runs"), torch.device("cpu"))
        check_model(arguments, loaded)
        alphabet = [
            loaded.tokenizer.decode([index]) for index in range(loaded.tokenizer.vocab_size)
        ]
        report("starting the server")
        with start_server(loaded.folder, arguments) as url:
            report("closed loops: requests follow answers")
            busy = Run(arguments.concurrency)
            closed = measure([IDLE, busy], url, alphabet, arguments)
            tokens_per_second = statistics.median(closed[busy]["tokens_per_second"])
            rates = _rates(arguments, tokens_per_second / arguments.tokens)
            report("open loops: requests arrive at random, whatever has been answered")
            rows = closed | measure([Run(rate=rate) for rate in rates], url, alphabet, arguments)
    idle_ms = rows[IDLE]["first_token_ms"]["p99"]
    for row in rows.values():
        row["times_idle"] = row["first_token_ms"]["p99"] / idle_ms
    name = loaded.folder.name if arguments.checkpoint else arguments.shape
    title = f"{name}, {arguments.tokens} tokens per request"
    table = make_table(title, {one.title: row for one, row in rows.items()}, COLUMNS, NOTE)
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    results = [{**one._asdict(), **row} for one, row in rows.items()]
    return finish(arguments, [table], {**facts, **settings, "results": results})


def _rates(arguments: argparse.Namespace, capacity: float) -> list[float]:
    """Return the rates of the open loops, by default such as a server of this capacity can keep up
    with.
    """
    if arguments.rates is None:
        return [0.5 * capacity, 0.8 * capacity]
    return [rate for rate in arguments.rates if rate > 0]


def check_model(arguments: argparse.Namespace, loaded: "Loaded") -> None:
    """Raise ConfigError if the longest request does not fit into the window, or tokens are not
    characters.
    """
    window = loaded.model.config.block_size
    if max(arguments.prompt_lengths) + arguments.tokens > window:
        found = "--prompt-lengths and --tokens do not fit"
        raise ConfigError(f"{found} into the model's window of {window}")
    if loaded.config.data.tokenizer != "char":
        raise ConfigError(
            "--checkpoint: the client counts characters, so its tokenizer has to be char"
        )


def measure(
    runs: Sequence[Run], url: str, alphabet: Sequence[str], arguments: argparse.Namespace
) -> dict[Run, Row]:
    """Measure in interleaved rounds, after two requests that do not count.

    Prompts differ from round to round, since the server finds keys and values of equal ones again.
    """
    from benchmarks.http_load import poisson_arrivals, random_prompts, send, summarize_answers

    asyncio.run(send(url, ["O", "ROMEO"], 2))
    answers: dict[Run, list[Any]] = {}
    by_title = {one.title: one for one in runs}
    rounds = arguments.rounds if runs else 0
    for number, title in interleave(list(by_title), rounds, report):
        one = by_title[title]
        seed = [arguments.seed, number, one.concurrency, int(1000 * one.rate)]
        count = _num_requests(one, arguments)
        prompts = random_prompts(alphabet, arguments.prompt_lengths, count, seed)
        arrivals = poisson_arrivals(one.rate, count, seed) if one.rate else []
        sending = send(url, prompts, arguments.tokens, one.concurrency, arrivals)
        answers.setdefault(one, []).append(asyncio.run(sending))
    return {one: summarize_answers(of_rounds) for one, of_rounds in answers.items()}


def _num_requests(one: Run, arguments: argparse.Namespace) -> int:
    """Return how many requests a load sends in a round."""
    if one.rate:
        return math.ceil(arguments.requests / arguments.rounds)
    if one.concurrency > 1:
        return 2 * one.concurrency
    return max(2, arguments.concurrency // 2)


def write_random_model(config: ModelConfig, folder: Path) -> Path:
    """Write a checkpoint of a model with random weights as `folder`, and return it."""
    from benchmarks.decoders import from_shape
    from gpt.checkpoint.folder import Checkpoint, write_checkpoint
    from gpt.checkpoint.loading import weights_of
    from gpt.data import CharTokenizer

    model = from_shape("", config, 1).model
    run = Config().model_copy(update={"model": config})
    write_checkpoint(folder, Checkpoint(weights_of(model), {}, {}, run, CharTokenizer(ALPHABET)))
    return folder


@contextmanager
def start_server(checkpoint: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Start `scripts/serve.py` on a free port of 127.0.0.1, yield its URL when it answers, and end
    it afterwards.

    Raises:
        GPTError: it ended, or did not answer in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        *script_command("serve"),
        *("--checkpoint", str(checkpoint)),
        *("--kv-dtype", arguments.kv_dtype),
        *("--device", arguments.device),
        # No request is refused, so that the latency of all is measured.
        *("--max-waiting", "100000"),
        *("--port", str(port)),
    ]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                code = process.poll()
                if code is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise GPTError(f"the server: {failure(command, code or 0, log.read())}")
                time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            return bool(json.load(answer)["data"])
    except OSError:
        return False


def _inter_token(row: Row, key: str) -> str:
    return "" if row["inter_token_ms"] is None else f"{row['inter_token_ms'][key]:.1f}"
