"""`scripts/bench.py serve`: throughput and latency of the engine and of the HTTP server under load, beside peers."""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.cli_options import add_count, add_measurement, at_least, check_installed
from benchmarks.decode import config_of
from benchmarks.measure import Row, describe, finish, interleave, make_table, ratios, show_ratios
from benchmarks.processes import Ask, json_process
from gpt.cli.command import report
from gpt.config import ModelConfig
from gpt.errors import ConfigError
from gpt.plugins import plugin_options

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

ENGINE, HTTP, GENERATE = "ServingEngine", "HTTP", "Hugging Face generate"
NOTE = (
    "Tokens/s: sampled tokens from the first request to the last answer, prompts included in the time; median of the\n"
    "rounds (lowest-highest). TTFT: time to first token, since the request was due. ITL: inter-token latency as the\n"
    "client sees it; tokens that arrive together share the time since those before. Both of all rounds together, in\n"
    "milliseconds. Of idle: p99 of TTFT over that of the same system with one request at a time."
)
COLUMNS = {
    "tokens/s": lambda row: show_ratios(row["tokens_per_second"], ",.0f"),
    "TTFT p50, ms": lambda row: _show(row["first_token_ms"], "p50"),
    "TTFT p99, ms": lambda row: _show(row["first_token_ms"], "p99"),
    "of idle": lambda row: "" if row["times_idle"] is None else f"{row['times_idle']:.2f}",
    "ITL p50, ms": lambda row: _show(row["inter_token_ms"], "p50"),
    "ITL p99, ms": lambda row: _show(row["inter_token_ms"], "p99"),
}


class Run(NamedTuple):
    """Which system is measured, and how: with so many requests in flight, or so many arriving per second."""

    system: str
    concurrency: int = 1
    rate: float = 0.0

    @property
    def title(self) -> str:
        how = f"{self.rate:.3g} requests/s" if self.rate else f"{self.concurrency} at a time"
        return f"{self.system}, {how}"


def add_parser(subparsers: Any) -> None:
    summary = "Measure many requests at a time: the engine from Python, the HTTP server, and peers, in alternation."
    parser = add_measurement(subparsers, "serve", summary, "--hf --concurrency 32 --rates 8 16")
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="a trained model instead of random weights")
    shape = "layers, heads and width of a model with random weights (default: 6/6/384)"
    parser.add_argument("--shape", default="6/6/384", metavar="L/H/C", help=shape)
    kv_dtype = "of keys and values in our engine and server (default: fp32)"
    parser.add_argument("--kv-dtype", choices=("fp32", "bf16", "int8"), default="fp32", help=kv_dtype)
    add_count(parser, "--window", 256, "block_size of the shape")
    add_count(parser, "--prompt-lengths", [16, 32, 64, 128], "characters; each prompt has one of them, at random")
    add_count(parser, "--tokens", 120, "tokens sampled after each prompt")
    add_count(parser, "--concurrency", 32, "requests in flight in the closed loop, which sends twice as many", lowest=2)
    add_count(parser, "--requests", 150, "requests at each rate, in all rounds together")
    rates = "requests per second of the open loop; 0: no open loop (default: half and 0.8 of the engine's capacity)"
    parser.add_argument("--rates", type=at_least(0, float), nargs="+", metavar="R", help=rates)
    add_count(parser, "--rounds", 3, "rounds")
    add_count(parser, "--seed", 1, "of prompts and arrivals", lowest=0)
    parser.add_argument("--hf", action="store_true", help=f"also {GENERATE}, called for one request after another")
    parser.set_defaults(run=run, architecture="gpt2")


def run(arguments: argparse.Namespace) -> int:
    """Measure closed loops first, then open loops, by default at rates that the engine can keep up with."""
    config = check(arguments)

    import torch

    from benchmarks.serving.servers import write_random_model
    from gpt.checkpoint import load_trained

    facts = describe("serve", arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpt-bench-")))
        path = arguments.checkpoint or write_random_model(config, folder / "random")
        loaded = load_trained(path, Path("runs"), torch.device("cpu"))
        check_model(arguments, loaded)
        systems = start_systems(arguments, loaded, stack)
        alphabet = [loaded.tokenizer.decode([index]) for index in range(loaded.tokenizer.vocab_size)]
        many = [Run(name, arguments.concurrency) for name in systems if name != GENERATE]
        report("closed loops: requests follow answers")
        closed = measure([*(Run(name) for name in systems), *many], systems, alphabet, arguments)
        capacity = statistics.median(closed[many[0]]["tokens_per_second"]) / arguments.tokens
        rates = [0.5 * capacity, 0.8 * capacity] if arguments.rates is None else filter(None, arguments.rates)
        open_loops = [Run(name, rate=rate) for rate in rates for name in systems if name != GENERATE]
        report("open loops: requests arrive at random, whatever has been answered")
        rows = closed | measure(open_loops, systems, alphabet, arguments)
    for one, row in rows.items():
        row["times_idle"] = _ratio(row["first_token_ms"], rows[Run(one.system)]["first_token_ms"])
    title = f"{loaded.folder.name if arguments.checkpoint else arguments.shape}, {arguments.tokens} tokens per request"
    comparisons = compare(closed, arguments.concurrency)
    ratio = {"median (lowest-highest)": show_ratios}
    tables = [
        make_table(title, {one.title: row for one, row in rows.items()}, COLUMNS, NOTE),
        make_table("Ratios of tokens/s, round by round", comparisons, ratio, ""),
    ]
    names = ("shape", "kv_dtype", "window", "prompt_lengths", "tokens", "concurrency", "requests", "rounds", "seed")
    settings = {name: getattr(arguments, name) for name in names}
    results = [{**one._asdict(), **row} for one, row in rows.items()]
    return finish(arguments, tables, {**facts, **settings, "results": results, "comparisons": comparisons})


def check(arguments: argparse.Namespace) -> ModelConfig:
    """Return the model of the shape; raise ConfigError if a package is missing."""
    if arguments.hf:
        check_installed("--hf", "transformers")
    check_installed("serve", "fastapi", "uvicorn", "h11")
    return config_of(arguments.shape, arguments)


def check_model(arguments: argparse.Namespace, loaded: "Loaded") -> None:
    """Raise ConfigError if the longest request does not fit into the window, or the model suits no client."""
    window = loaded.model.config.block_size
    if max(arguments.prompt_lengths) + arguments.tokens > window:
        raise ConfigError(f"--prompt-lengths and --tokens do not fit into the model's window of {window}")
    if loaded.config.data.tokenizer != "char":
        raise ConfigError("--checkpoint: clients count characters, so its tokenizer has to be char")


def start_systems(arguments: argparse.Namespace, loaded: "Loaded", stack: ExitStack) -> dict[str, Ask]:
    """Start all processes, and warm each up with two requests; `stack` ends them."""
    from benchmarks.serving import servers

    def client(name: str, *words: str) -> Ask:
        return stack.enter_context(
            json_process(name, [sys.executable, "-m", f"benchmarks.serving.{words[0]}", *words[1:], *plugin_options()])
        )

    checkpoint = str(loaded.folder)
    systems = {ENGINE: client(ENGINE, "local_client", "engine", checkpoint, arguments.kv_dtype)}
    report(f"starting {HTTP}")
    url = stack.enter_context(servers.start_server(loaded.folder, arguments.kv_dtype))
    systems[HTTP] = client(HTTP, "http_client", url, servers.first_model(url))
    if arguments.hf:
        systems[GENERATE] = client(GENERATE, "local_client", "hugging-face", checkpoint, "fp32")
    for name, ask in systems.items():
        report(f"warming up {name}")
        ask(prompts=["O", "ROMEO"], tokens=2)
    return systems


def measure(
    runs: Sequence[Run], systems: Mapping[str, Ask], alphabet: Sequence[str], arguments: argparse.Namespace
) -> dict[Run, Row]:
    """Measure in interleaved rounds; in each round all systems get the same prompts, which no other round has."""
    from benchmarks.serving.load import poisson_arrivals, random_prompts, summarize_answers

    answers: dict[Run, list[list[Row]]] = {}
    by_title = {one.title: one for one in runs}
    for number, title in interleave(list(by_title), arguments.rounds if runs else 0, report):
        one = by_title[title]
        seed = [arguments.seed, number, one.concurrency, int(1000 * one.rate)]
        count = -(-arguments.requests // arguments.rounds) if one.rate else requests_of(one.concurrency, arguments)
        load: Row = {"concurrency": one.concurrency, "tokens": arguments.tokens}
        load["prompts"] = random_prompts(alphabet, arguments.prompt_lengths, count, seed)
        load["arrivals"] = poisson_arrivals(one.rate, count, seed) if one.rate else []
        answers.setdefault(one, []).append(systems[one.system](**load)["answers"])
    rows = {one: summarize_answers(rounds) for one, rounds in answers.items()}
    for one in rows.keys() & {Run(GENERATE)}:
        rows[one]["first_token_ms"] = None  # it gives all tokens at the end
    return rows


def requests_of(concurrency: int, arguments: argparse.Namespace) -> int:
    return 2 * concurrency if concurrency > 1 else max(2, arguments.concurrency // 2)


def compare(closed: Mapping[Run, Row], concurrency: int) -> dict[str, list[float]]:
    """Return, round by round, how many times faster the engine's batch is, and what HTTP costs in percent."""

    def rates(system: str, at_a_time: int) -> list[float]:
        found: list[float] = closed[Run(system, at_a_time)]["tokens_per_second"]
        return found

    batch, http = rates(ENGINE, concurrency), rates(HTTP, concurrency)
    others = [Run(ENGINE, 1), *(one for one in closed if one.system == GENERATE or one.concurrency == concurrency)]
    times = {
        f"{ENGINE} at {concurrency} over {one.title}": ratios(rates(*one[:2]), batch)
        for one in others
        if one not in (Run(ENGINE, concurrency), Run(HTTP, concurrency))
    }
    return {**times, f"cost of HTTP at {concurrency}, %": [100 - 100 * one for one in ratios(batch, http)]}


def _show(milliseconds: Mapping[str, float] | None, key: str) -> str:
    return "" if milliseconds is None else f"{milliseconds[key]:.1f}"


def _ratio(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> float | None:
    return None if one is None or other is None else one["p99"] / other["p99"]
