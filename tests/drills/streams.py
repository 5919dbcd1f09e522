"""Many streaming clients at a time: everyone gets what it would get alone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import gpt
from drills.frame import Drill, Tally, repeats
from drills.tiny_run import train_tiny
from drills.traffic import bring, wait_behind_unread_streams
from gpt.checkpoint import load_trained
from server_process import ServerProcess, serve_process

PROMPTS = ("It was the", "the keys", "ever a day, ever a day, ever a day", "T", "", "so " * 300)
CLIENT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=300)
def ask(body):
    text, reasons, usage = [], [], []
    for chunk in client.completions.create(**body, stream=True, stream_options={"include_usage": True}):
        usage += [chunk.usage.completion_tokens] if chunk.usage else []
        for choice in chunk.choices:
            text.append(choice.text)
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return {"text": "".join(text), "reasons": reasons, "usage": usage}
print("ready", flush=True)
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    print(json.dumps(list(pool.map(ask, json.loads(sys.stdin.readline())))))
"""


def make_requests(count: int, model: str) -> list[dict[str, Any]]:
    """Return requests of different prompts, lengths and seeds; every third is greedy."""
    return [
        {
            "model": model,
            "prompt": PROMPTS[number % len(PROMPTS)],
            "max_tokens": 1 + 37 * number % 200,
            "seed": number,
            "temperature": 0 if number % 3 == 0 else 0.9,
            "extra_body": {"long_prompt": "crop", "overflow": "slide"},
        }
        for number in range(count)
    ]


def ask_all(server: ServerProcess, requests: list[dict[str, Any]], processes: int, threads: int) -> list[Any]:
    """Return the answers to requests by processes of their own, each with some threads."""
    command = [sys.executable, "-c", CLIENT, server.url, str(threads)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    clients = [subprocess.Popen(command, **pipes) for _ in range(processes)]  # type: ignore[call-overload]
    for client in clients:
        assert client.stdout.readline() == "ready\n"

    def run(number: int) -> list[Any]:
        output, _ = clients[number].communicate(json.dumps(requests[number::processes]) + "\n")
        assert clients[number].returncode == 0
        return json.loads(output)

    with ThreadPoolExecutor(processes) as pool:
        parts = list(pool.map(run, range(processes)))
    return [parts[number % processes][number // processes] for number in range(len(requests))]


def find_wrong(run: Path, requests: list[dict[str, Any]], answers: list[Any]) -> Iterator[int]:
    """Yield the numbers of the answers that differ from what a request gets alone, in another process."""
    loaded = load_trained(run, run.parent, torch.device("cpu"))
    for number, (body, answer) in enumerate(zip(requests, answers, strict=True)):
        expected = gpt.generate(
            loaded.model,
            loaded.tokenizer,
            body["prompt"],
            max_new_tokens=body["max_tokens"],
            seed=body["seed"],
            temperature=body["temperature"],
            **body["extra_body"],
        )
        if answer != {"text": expected, "reasons": ["length"], "usage": [body["max_tokens"]]}:
            yield number


def run(folder: Path, full: bool) -> Tally:
    """Ask a server from some processes at a time, and compare every answer with that of `gpt.generate`."""
    tally = Tally("answers", "tokens", "mixed requests", "clients vanished", "wrong")
    trained = train_tiny(folder, "model.n_embd=64")  # heads that the native backend takes
    requests = make_requests(2000 if full else 96, "tiny")
    with serve_process(folder) as server:
        answers = ask_all(server, requests, processes=8 if full else 3, threads=8)
        server.seconds_to_rest()
        bring(server, trained, repeats(full, 20_000, 100), tally)
        if full:
            wait_behind_unread_streams(server, tally)
    tally.count("answers", len(answers))
    tally.count("tokens", sum(body["max_tokens"] for body in requests))
    for number in find_wrong(trained, requests, answers):
        tally.count("wrong")
        tally.check(False, f"request {number} got another text than alone: {requests[number]}")
    return tally


PROMISE = (
    "Streams of many clients at a time carry the text that each would get alone. Requests of every kind for long, of "
    "which one in a hundred is left, get the right texts, leave no block in use and less than 64 MiB, and are all "
    "counted; a short one behind 64 unread streams takes less than 2 s."
)
DRILL = Drill(PROMISE, run)
