"""`gpt serve`: serve trained models over HTTP, by a playground and the OpenAI protocols."""

import argparse
import asyncio
import gc
import re
import webbrowser
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch, report
from gpt.cli.draft import add_draft_option, check_draft, load_draft
from gpt.cli.shared_options import (
    add_device_option,
    add_number,
    add_plugin_option,
    add_runs_option,
    add_weights_option,
    command,
    not_empty,
    number,
    to_path,
)
from gpt.system.environment import read_settings
from gpt.system.errors import CheckpointError, GPTError
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from gpt.checkpoint import Loaded
    from gpt.extras.serving.http.limits import Limits
    from gpt.extras.serving.http.models import Models
    from gpt.model import GPT

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""
REQUIREMENTS = ("fastapi", "uvicorn", "prometheus_client")
"""Packages of the extra `serve`."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    _add_model_options(parser)
    _add_address_options(parser)
    _add_limit_options(parser)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        type=to_path,
        action="append",
        default=[],
        metavar="RUN",
        help="name of a run, run folder, checkpoint folder, or best/last inside a run; may be "
        "repeated, the first is the default model; without it every run is served, and the newest "
        "is the default",
    )
    add_runs_option(parser)
    add_plugin_option(parser)
    add_weights_option(parser)
    add_device_option(parser)
    add_draft_option(parser)
    parser.add_argument(
        "--backend",
        choices=("auto", "eager", "native", "graph"),
        default="auto",
        help="how to compute the logits (default: auto, the fastest)",
    )


def _add_address_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the server listens, and whom it answers."""
    parser.add_argument(
        "--host",
        type=not_empty,
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=number(0, 2**16 - 1),
        default=8000,
        metavar="PORT",
        help="port; 0: any that is free (default: %(default)s)",
    )
    parser.add_argument(
        "--api-key",
        type=not_empty,
        metavar="KEY",
        help="key that every request must send; `ps` shows it to other users of this machine, so "
        "the environment variable GPT_API_KEY is a better place (default: its value, or no key)",
    )
    parser.add_argument(
        "--allow-host",
        type=_host_name,
        action="append",
        default=[],
        metavar="NAME",
        help="a host name by which clients reach this server; may be repeated",
    )
    parser.add_argument(
        "--allow-origin",
        type=_origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a site whose pages may send requests, such as https://chat.lan; *: all",
    )
    parser.add_argument("--access-log", action="store_true", help="print a line for each request")
    parser.add_argument("--open", action="store_true", help="open the playground in a browser")


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how much the server computes and holds at a time."""
    any_count = 2**31  # more than any machine holds
    add_number(parser, "--max-sequences", "sequences decoded concurrently", 64, most=4096)
    add_number(parser, "--max-waiting", "sequences that may wait in the queue", 256, most=any_count)
    add_number(parser, "--max-tokens", "most tokens of a completion", 4096, most=any_count)
    add_number(
        parser,
        "--cache-blocks",
        "cache blocks of 64 positions (default: a window each)",
        most=any_count,
    )
    parser.add_argument(
        "--kv-dtype",
        choices=("fp32", "bf16", "fp16", "int8"),
        default="fp32",
        help="dtype of the key/value cache; a narrower one speeds up large batches (default: fp32)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=number(0, kind=float),
        default=30.0,
        metavar="S",
        help="seconds to finish running requests after SIGTERM (default: 30)",
    )


def _host_name(text: str) -> str:
    """Return a name as in a header Host, but without the port, which is not compared."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        expected = "expected a name such as gpu-box.lan, without scheme and port"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return text


def _origin(text: str) -> str:
    """Return a site as browsers send it in a header Origin, without a path."""
    if not re.fullmatch(r"\*|https?://[^/\s]+", text):
        expected = "expected * or a site such as https://chat.lan, without path"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return text


@command(
    "serve",
    "Serve trained models: a playground at http://127.0.0.1:8000 and the OpenAI completions "
    "protocol below /v1.",
    "--port 8000",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    for name in REQUIREMENTS:
        if find_spec(name) is None:
            reason = f"{name} is not installed; the server needs it"
            raise GPTError(f"{reason}: pip install 'glassgpt[serve]'")
    load_torch()
    from gpt.extras.serving.http.limits import Limits
    from gpt.extras.serving.http.server import bind
    from gpt.system.device import keep_freed_memory

    keep_freed_memory()
    limits = Limits(
        max_tokens=arguments.max_tokens,
        running=arguments.max_sequences,
        waiting=arguments.max_waiting,
    )
    models = _models(arguments, limits)
    # The port is bound before the model is loaded, so that one that is taken is found at once.
    with bind(arguments.host, arguments.port) as bound:
        return asyncio.run(_serve(arguments, models, limits, bound))


def _models(arguments: argparse.Namespace, limits: "Limits") -> "Models":
    """Return the models to serve, of which none is loaded yet."""
    from gpt.checkpoint import Loaded
    from gpt.extras.serving import EngineThread
    from gpt.extras.serving.engine_thread import EngineLimits
    from gpt.extras.serving.http.models import Models
    from gpt.generation.placement import AUTO, load_for_decoding
    from gpt.generation.runtime import DecodeOptions
    from gpt.system.device import choose_device

    if arguments.device != AUTO:
        choose_device(arguments.device)  # refuses one that is not there, before the port is bound

    options = DecodeOptions(arguments.backend, arguments.kv_dtype)

    draft: Loaded | None = None
    if arguments.draft is not None:
        draft = load_draft(arguments.draft, arguments.runs)

    def make_engine(loaded: Loaded) -> EngineThread:
        return EngineThread(
            loaded.model,
            loaded.tokenizer,
            EngineLimits(limits.running, limits.waiting, arguments.cache_blocks),
            options,
            draft=_fitting_model(draft, loaded),
        )

    def load(folder: "Path") -> Loaded:
        report(f"using {folder}")
        return load_for_decoding(
            folder, arguments.runs, arguments.device, arguments.weights, options, report
        )

    return Models(load, make_engine, arguments.runs, arguments.checkpoint)


def _fitting_model(draft: "Loaded | None", loaded: "Loaded") -> "GPT | None":
    """Return the model of the draft, or report why it cannot guess for this model."""
    if draft is None:
        return None
    try:
        check_draft(draft, loaded)
    except CheckpointError as error:
        report(f"{loaded.folder} is decoded without a draft: {error}")
        return None
    return draft.model.to(next(loaded.model.parameters()).device)


async def _serve(
    arguments: argparse.Namespace, models: "Models", limits: "Limits", bound: "socket.socket"
) -> int:
    """Load the first model, and serve until a signal comes."""
    import gpt
    from gpt.extras.serving.http.app import create_app
    from gpt.extras.serving.http.server import Server, build_config

    key = arguments.api_key or read_settings().api_key
    app = create_app(models, limits, arguments.allow_host, key, arguments.allow_origin)
    app.version = gpt.__version__
    await _load_first(models)
    # From now on the garbage collector passes over all that was loaded. Otherwise it would search
    # this for half a second whenever a megabyte of JSON is read.
    gc.collect()
    gc.freeze()
    if arguments.host not in LOOPBACK and key is None:
        found = f"warning: whoever reaches {arguments.host} can use this server"
        report(f"{found}; set GPT_API_KEY to require a key")
    url = _url(bound)
    report(f"serving {models.first}: playground {url}/, API {url}/v1")
    if arguments.open:
        webbrowser.open(url)  # the socket already listens, so that the page waits for the server
    config = build_config(
        app,
        limits,
        access_log=arguments.access_log,
        timeout_graceful_shutdown=arguments.drain_seconds,
    )
    try:
        # It serves until a signal, which uvicorn raises again when it has stopped, so that the
        # signal ends this process.
        await Server(config).serve([bound])
    finally:
        await models.close()
    return 0


async def _load_first(models: "Models") -> None:
    """Load the first model.

    The first request need not wait for it then, and errors are reported at the start.
    """
    from gpt.extras.serving.http.protocol import APIError

    try:
        with announce_if_slow(report, "loading the model"):
            async with models.use(None):
                pass
    except APIError as error:
        raise GPTError(error.message) from None


def _url(bound: "socket.socket") -> str:
    """Return the URL of a socket, with the port that the system chose if it was asked for 0."""
    host, port = bound.getsockname()[:2]
    if ":" in host:  # IPv6
        host = f"[{host}]"
    return f"http://{host}:{port}"
