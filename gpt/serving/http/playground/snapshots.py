"""`/api/runs/{name}/snapshots/{step}`: what a model looked like at a step of its training."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query
from torch import Tensor

from gpt.checkpoint import RunFolder
from gpt.errors import CheckpointError
from gpt.inspection.views.snapshots import Snapshot, map_embedding, nearest_tokens, read_snapshot
from gpt.serving.http.playground.runs import Runs
from gpt.serving.http.protocol import APIError

NEAREST = 4
MOST_STEPS = 2**62


@dataclass(frozen=True)
class SnapshotView:
    """A snapshot for a page.

    Attributes:
        sample: what the model wrote; empty where an evaluation wrote the sample of this step.
        line: labels of the T tokens that it read.
        attention: (n_layer, H, T, T), rounded: `[layer][h][i][j]` is the weight of query i on key j.
        tokens: labels of the vocabulary; none where it is large.
        points: x and y of each token, see `map_embedding`.
        nearest: for each token those with the largest cosine, best first.
    """

    step: int
    sample: str
    line: list[str]
    attention: list[Any]
    tokens: list[str]
    points: list[Any]
    nearest: list[list[int]]


def add_snapshots(app: FastAPI, runs: Runs) -> None:
    def get_snapshot(
        name: str,
        step: Annotated[int, Path(ge=0, lt=MOST_STEPS)],
        basis: Annotated[int, Query(ge=0, lt=MOST_STEPS)],
    ) -> SnapshotView:
        """Return the snapshot of a step, with its embeddings in the plane of those of the step `basis`."""
        folder = runs.get(name)
        shown, final = _read(folder, step), _read(folder, basis)
        if shown.embedding.shape != final.embedding.shape:
            raise APIError(400, f"the snapshots of the steps {step} and {basis} are of different models")
        points = map_embedding(shown.embedding, final.embedding) if shown.tokens else shown.embedding
        nearest = nearest_tokens(shown.embedding, NEAREST) if shown.tokens else []
        return SnapshotView(
            *(step, shown.sample, shown.line, _rounded(shown.attention), shown.tokens, _rounded(points), nearest)
        )

    app.add_api_route("/api/runs/{name}/snapshots/{step}", get_snapshot)


def _read(folder: RunFolder, step: int) -> Snapshot:
    file = folder.snapshot(step)
    if not file.is_file():
        raise APIError(404, f"the run {folder.path.name!r} has no snapshot of step {step}")
    try:
        return read_snapshot(file)
    except CheckpointError:
        raise APIError(500, f"the run {folder.path.name!r} has a damaged snapshot of step {step}") from None


def _rounded(values: Tensor) -> list[Any]:
    """Return a tensor as lists, with three decimals; of float32, more would be written."""
    rounded: list[Any] = values.double().mul(1000).round().div(1000).tolist()
    return rounded
