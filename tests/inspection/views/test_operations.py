import base64
import json
import math

import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.shape_trace import trace_shapes
from gpt.inspection.views.operations import heat_map, statistics_of, trace_view
from gpt.inspection.views.tokens import View
from inspection.variants import every_variant
from tiny import sharp_model

TOKENIZER = CharTokenizer("\n abcdefghijklmnopqrst")
TEXT = "a bad face"
IDS = torch.as_tensor(TOKENIZER.encode(TEXT)).long()


def cells_of(heat: View) -> list[list[float | None]]:
    """Rows of a heat map, one number at a time."""
    steps = list(base64.b64decode(heat["cells"]))
    values = [None if step == 0 else (step - 128) / 127 * heat["scale"] for step in steps]
    return [values[at : at + heat["columns"]] for at in range(0, len(values), heat["columns"])]


def operation(view: View, about: str, layer: int | None = None) -> View:
    return next(entry for entry in view["operations"] if entry["about"] == about and entry["layer"] == layer)


@every_variant
def test_the_operations_are_those_of_the_trace(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    view = trace_view(model, TOKENIZER, IDS)
    assert view["labels"] == ["a", "␣", "b", "a", "d", "␣", "f", "a", "c", "e"]
    for entry, row in zip(view["operations"], trace_shapes(model, IDS[None]), strict=True):
        assert f"{entry['module']}.{entry['function']}".lstrip(".") == entry["name"] == row.name
        assert (entry["about"], entry["axes"], entry["source"]) == (row.about, row.symbols, row.source)
        assert (entry["shape"], entry["inputs"]) == (list(row.shape), list(row.inputs))
        assert entry["parameters"] == [
            {"name": use.name, "axes": use.symbols, "shape": list(use.shape)} for use in row.parameters
        ]
    assert json.loads(json.dumps(view, allow_nan=False)) == view


def test_inputs_are_the_operations_before() -> None:
    view = trace_view(sharp_model(), TOKENIZER, IDS)
    entries = view["operations"]
    assert all(source < number for number, entry in enumerate(entries) for source in entry["inputs"])
    for about, sources in (
        ("scores: every query times every key", ["queries, heads before positions", "keys, transposed"]),
        ("queries, projected", ["residual stream, normalized"]),
    ):
        assert [entries[number]["about"] for number in operation(view, about, 1)["inputs"]] == sources


@torch.no_grad()
def test_the_values_are_those_of_the_pass() -> None:
    model = sharp_model()
    logits, cache = run_with_cache(model, IDS[None])
    view = trace_view(model, TOKENIZER, IDS)
    expected = {
        ("attention weights: softmax over the keys, rows sum to 1", 1): cache["pattern", 1],
        ("hidden units, through GELU", 0): cache["post", 0],
        ("logits: a score for every id", None): logits,
    }
    for (about, layer), tensor in expected.items():
        found = operation(view, about, layer)["statistics"]
        assert found == pytest.approx(statistics_of(tensor), rel=1e-4, abs=1e-6)
    weights = cells_of(operation(view, "attention weights: softmax over the keys, rows sum to 1", 1)["heat"])
    torch.testing.assert_close(torch.tensor(weights), cache["pattern", 1][0, 0], atol=1 / 250, rtol=0)


def test_infinities_are_counted_and_left_out() -> None:
    masked = operation(trace_view(sharp_model(), TOKENIZER, IDS), "scores, -inf where a query may not attend", 0)
    size = len(IDS)
    assert masked["statistics"]["infinite"] == 4 * size * (size - 1) // 2
    assert math.isfinite(masked["statistics"]["mean"])
    cells = cells_of(masked["heat"])
    assert all((cells[query][key] is None) == (key > query) for query in range(size) for key in range(size))


@pytest.mark.parametrize(
    ("values", "mean", "std", "low", "high"),
    [([1.0, 3.0], 2, 1, 1, 3), ([True, False], 0.5, 0.5, 0, 1), ([-math.inf] * 6, None, None, None, None)],
)
def test_statistics(values: list[float], mean: float, std: float, low: float, high: float) -> None:
    expected = {"mean": mean, "std": std, "min": low, "max": high, "infinite": 6 if mean is None else 0}
    assert statistics_of(torch.tensor(values)) == expected
    assert (set(cells_of(heat_map(torch.tensor(values)))[0]) == {None}) is (mean is None)


@pytest.mark.parametrize("shape", [(5,), (1, 1), (2, 3, 4), (1, 2, 64, 96), (100, 7)])
def test_a_heat_map_averages_the_last_two_dimensions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    heat = heat_map(x)
    plane = x[None] if x.dim() == 1 else x.reshape(-1, *shape[-2:])[0]
    assert (heat["height"], heat["width"]) == plane.shape
    assert (heat["rows"], heat["columns"]) == (min(plane.size(0), 32), min(plane.size(1), 48))
    cells = torch.tensor(cells_of(heat))
    assert heat["scale"] == pytest.approx(float(cells.abs().max()))
    if shape[-2:] == (64, 96):  # blocks of two by two
        plane = plane.view(32, 2, 48, 2).mean(dim=(1, 3))
    if cells.shape == plane.shape:
        torch.testing.assert_close(cells, plane, atol=heat["scale"] / 250, rtol=0)
