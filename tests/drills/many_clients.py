"""Many streaming clients at a time: everyone gets what it would get alone; `--help` says how to do it at full scale."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[level]) for level in (1, 2)]  # works as a script

import torch

import gpt
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare 2,000 answers with those given alone.")
    parser.add_argument("--checkpoint", type=Path, default="runs/quickstart", help="run (default: runs/quickstart)")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=8, help="clients per process (default: 8)")
    arguments = parser.parse_args()
    requests = make_requests(arguments.requests, arguments.checkpoint.name)
    with serve_process(Path.cwd(), "--checkpoint", str(arguments.checkpoint)) as server:
        begin = time.perf_counter()
        answers = ask_all(server, requests, arguments.processes, arguments.threads)
        seconds = time.perf_counter() - begin
        server.seconds_to_rest()
    wrong = list(find_wrong(arguments.checkpoint, requests, answers))
    tokens = sum(body["max_tokens"] for body in requests)
    print(f"{len(answers)} answers, {tokens} tokens in {seconds:.1f} s; no block in use; wrong: {wrong or 'none'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
