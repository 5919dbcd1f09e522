"""The decode step as a CUDA graph, with numbers: a recorded graph on a CPU stands in for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import recorded_graph
from fake_cuda.install import Stream, on_stream
from gpt.config import SamplingParams
from gpt.generation import Batch
from gpt.generation.backends.compiled import CompiledBackend, captured
from gpt.generation.backends.eager import UncachedBackend
from gpt.generation.backends.selection import DecodeOptions, EagerRuntime
from gpt.model import GPT
from recorded_graph import RecordedGraph
from tiny import sharp_model
from tolerances import LOGITS

TEXTS = [torch.randint(23, (40,), generator=torch.Generator().manual_seed(row)).tolist() for row in range(3)]


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every capture: graphs are recorded, and a step on the CPU is captured."""
    options: list[dict[str, Any]] = []

    def capture(graph: RecordedGraph, **names: Any) -> Any:
        options.append(names)
        return recorded_graph.capture(graph)

    for name, value in (("Stream", Stream), ("stream", on_stream), ("CUDAGraph", RecordedGraph), ("graph", capture)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch, "compile", lambda step, dynamic: captured(step))
    monkeypatch.setattr(RecordedGraph, "replays", 0)
    return options


def largest_error(
    backend: CompiledBackend, model: GPT, rows: list[int], before: Callable[[int], object] = lambda step: None
) -> float:
    """How far the logits are from the uncached ones, past the edge of the window."""
    errors, uncached = [], UncachedBackend(model)
    with torch.inference_mode():
        for step in range(30):
            before(step)
            contexts = [TEXTS[row][: 2 + 3 * row + step] for row in rows]
            errors.append((backend.next_logits(contexts) - uncached.next_logits(contexts)).abs().max())
    return float(torch.stack(errors).max())


@pytest.mark.parametrize("changes", [{"position": "learned"}, {"position": "rope", "qk_norm": True}])
def test_replays_give_the_logits_without_a_cache(modes: list[Any], changes: dict[str, object]) -> None:
    model = sharp_model(std=0.25, n_kv_head=2, **changes)
    assert largest_error(CompiledBackend(model), model, [0, 1, 2]) < LOGITS
    assert RecordedGraph.replays == 30
    assert modes == [{"capture_error_mode": "thread_local"}]  # other threads may use the device meanwhile


@pytest.mark.parametrize(("rows", "captures"), [([2, 0], 1), ([1], 1), ([0, 0, 1], 1), ([0, 1, 2, 1], 2)])
def test_rows_leave_and_multiply(modes: list[Any], rows: list[int], captures: int) -> None:
    model = sharp_model(std=0.25)
    backend = CompiledBackend(model)
    with torch.inference_mode():
        backend.next_logits([text[: 1 + 3 * row] for row, text in enumerate(TEXTS)])
        backend.select(rows)
    assert largest_error(backend, model, rows) < LOGITS
    assert len(modes) == captures


def test_texts_that_end_one_after_another_are_those_of_the_eager_backend(modes: list[Any]) -> None:
    model, params = sharp_model(std=0.25), SamplingParams(end_id=4, max_new_tokens=40)
    eager, compiled = (
        Batch(EagerRuntime(model, DecodeOptions(backend)), [[1], [2, 3], [4]], params, [0, 1, 2])
        for backend in ("eager", "compiled")
    )
    active = set()
    while eager.active:
        active.add(len(eager.active))
        assert eager.step() == compiled.step()
    assert len(active) > 1


OWNERS: dict[str, Callable[[Any], object]] = {
    "_tokens": lambda backend: backend,
    "lengths": lambda backend: backend._view,
    "data": lambda backend: backend._cache.keys,
}


@pytest.mark.parametrize("stale", OWNERS)
def test_a_tensor_that_takes_the_place_of_a_captured_one_is_seen(modes: list[Any], stale: str) -> None:
    model = sharp_model(std=0.25)
    backend = CompiledBackend(model)

    def replace(step: int) -> None:
        if step == 3:
            owner = OWNERS[stale](backend)
            setattr(owner, stale, getattr(owner, stale).clone())

    assert not largest_error(backend, model, [0, 1, 2], replace) < 0.1


def test_a_graph_runs_again_on_the_same_memory(modes: list[Any]) -> None:
    x, calls = torch.ones(3), []

    def step() -> Tensor:
        calls.append(None)
        return x.view(1, 3).mul(2).add_(1)

    replay = captured(step)
    before = len(calls)
    x.fill_(5)
    first = replay()
    assert first.tolist() == [[11, 11, 11]]
    x.fill_(7)
    assert replay() is first
    assert first.tolist() == [[15, 15, 15]]
    assert len(calls) == before
