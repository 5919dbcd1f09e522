"""`scripts/serve.py`: serve trained models over HTTP, by a playground and by the OpenAI completions protocol."""

import argparse
import asyncio
import math
import re
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.shared_options import add_plugin_option, add_weights_option, load_given_plugins, not_empty, to_path
from gpt.environment import read_settings
from gpt.errors import GPTError
from gpt.progress import announced

if TYPE_CHECKING:
    import socket

    from gpt.serving.http.limits import Limits
    from gpt.serving.http.models import Models
    from gpt.serving.http.playground.trainings import Trainings

RECIPES, DATA = Path("configs"), Path("data")
"""Where the page finds configuration files and texts to train from, and keeps what is pasted into it."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 2 a user's mistake, 130 stopped by Ctrl-C, 143 by SIGTERM."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Serve trained models: a playground at http://127.0.0.1:8000 and the OpenAI completions protocol below /v1.",
        "python scripts/serve.py --port 8000",
    )
    parser.add_argument(
        "--checkpoint",
        type=to_path,
        action="append",
        default=[],
        metavar="PATH",
        help="run folder, checkpoint folder, or best/last inside a run; may be repeated, the first is the default "
        "model; without it every run is served, and the newest is the default",
    )
    parser.add_argument(
        "--runs", type=to_path, default="runs", metavar="DIR", help="folder of run folders (default: runs)"
    )
    add_plugin_option(parser)
    add_weights_option(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    parser.add_argument(
        "--backend",
        choices=("auto", "eager", "native"),
        default="auto",
        help="of the engine (default: auto)",
    )
    parser.add_argument("--host", type=not_empty, default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0: any that is free (default: 8000)")
    parser.add_argument(
        "--api-key", type=not_empty, metavar="KEY", help="that requests must have (default: from GPT_API_KEY, or none)"
    )
    parser.add_argument(
        "--allow-host",
        type=_host_name,
        action="append",
        default=[],
        metavar="NAME",
        help="a name that clients know this server by",
    )
    parser.add_argument("--max-sequences", type=int, default=64, metavar="N", help="computed at a time (default: 64)")
    parser.add_argument("--max-waiting", type=int, default=256, metavar="N", help="beside them (default: 256)")
    parser.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="of a completion (default: 4096)")
    parser.add_argument("--cache-blocks", type=int, metavar="N", help="of 64 positions (default: a window each)")
    parser.add_argument(
        "--kv-dtype",
        choices=("fp32", "bf16", "fp16", "int8"),
        default="fp32",
        help="of keys and values: a narrower one makes a large batch faster (default: fp32)",
    )
    parser.add_argument("--no-training", action="store_true", help="disable starting training from the page")
    parser.add_argument(
        "--drain-seconds", type=float, default=30.0, metavar="S", help="to finish what runs at SIGTERM (default: 30)"
    )
    return parser.parse_args(argv)


def _host_name(text: str) -> str:
    """Return a name that can stand in a Host header, in which it is compared without the port."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise argparse.ArgumentTypeError(f"expected a name such as gpu-box.lan, without scheme and port, got {text!r}")
    return text


def _run(arguments: argparse.Namespace) -> int:
    _check_options(arguments)
    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise GPTError(f"{missing[0]} is not installed; the server needs it: pip install -e '.[serve]'")
    load_torch()
    from gpt.device import keep_freed_memory
    from gpt.serving.http.limits import Limits
    from gpt.serving.http.server import bind

    keep_freed_memory()
    limits = Limits(max_tokens=arguments.max_tokens, running=arguments.max_sequences, waiting=arguments.max_waiting)
    models = _models(arguments, limits)
    with bind(arguments.host, arguments.port) as bound:
        return asyncio.run(_serve(arguments, models, limits, bound))


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise GPTError if a number is out of its range."""
    for name, most in (("max_sequences", 4096), ("max_waiting", 2**31), ("max_tokens", 2**31), ("cache_blocks", 2**31)):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= most:
            raise GPTError(f"--{name.replace('_', '-')} is {value}, expected 1 to {most}")
    if not 0 <= arguments.port < 2**16:
        raise GPTError(f"--port is {arguments.port}, expected 0 to 65535")
    if not 0 <= arguments.drain_seconds < math.inf:
        raise GPTError(f"--drain-seconds is {arguments.drain_seconds:g}, expected at least 0")


def _models(arguments: argparse.Namespace, limits: "Limits") -> "Models":
    from gpt.checkpoint import Loaded, load_trained
    from gpt.device import available_bytes, choose_device
    from gpt.serving import ServingEngine
    from gpt.serving.http.models import Models

    device = choose_device(arguments.device)

    def make_engine(loaded: Loaded) -> ServingEngine:
        return ServingEngine(
            loaded.model,
            loaded.tokenizer,
            max_sequences=limits.running,
            max_waiting=limits.waiting,
            cache_blocks=arguments.cache_blocks,
            backend=arguments.backend,
            kv_dtype=arguments.kv_dtype,
        )

    def load(folder: object) -> Loaded:
        return load_trained(to_path(str(folder)), arguments.runs, device, arguments.weights)

    return Models(load, make_engine, partial(available_bytes, device), arguments.runs, arguments.checkpoint)


def _trainings(models: "Models") -> "Trainings":
    from gpt.serving.http.playground.corpora import Corpora
    from gpt.serving.http.playground.recipes import Recipes
    from gpt.serving.http.playground.runs import Runs
    from gpt.serving.http.playground.trainings import Trainings

    runs = Runs(models.runs)
    return Trainings(runs, Recipes(RECIPES, runs), Corpora(DATA), report)


async def _serve(arguments: argparse.Namespace, models: "Models", limits: "Limits", bound: "socket.socket") -> int:
    from gpt.serving.http.app import create_app
    from gpt.serving.http.protocol import APIError
    from gpt.serving.http.server import Server

    trainings = None if arguments.no_training else _trainings(models)
    key = arguments.api_key or read_settings().api_key
    app = create_app(models, limits, arguments.allow_host, key, trainings)
    try:
        # loaded now, so that the first request does not wait and what is wrong is said at the start
        with announced(report, "loading the model"):
            async with models.use(None):
                pass
    except APIError as error:
        raise GPTError(error.message) from None
    if arguments.host not in LOOPBACK and key is None:
        report(f"warning: whoever reaches {arguments.host} can use this server; --api-key KEY asks for a key")
    host, port = bound.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    server = Server(app, limits, arguments.drain_seconds, report)
    code = await server.run(
        bound, lambda: report(f"serving {models.first}: playground {url}/, API {url}/v1, its reference {url}/docs")
    )
    await models.close()
    return code
