"""`/api/runs/{name}/snapshots/{step}`: what a model looked like at a step of its training."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query

from gpt.checkpoint import RunFolder
from gpt.errors import CheckpointError
from gpt.inspection.views.snapshots import Snapshot, map_embedding, nearest_tokens, read_snapshot
from gpt.serving.http.playground.runs import Runs
from gpt.serving.http.protocol import APIError
from gpt.training.snapshots import snapshot_file

NEAREST = 4


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
    def get_snapshot(name: str, step: int, basis: Annotated[int, Query(ge=0)]) -> SnapshotView:
        """Return the snapshot of a step, with its embeddings in the plane of those of the step `basis`."""
        folder = runs.get(name)
        shown, final = _read(folder, step), _read(folder, basis)
        points = map_embedding(shown.embedding, final.embedding) if shown.tokens else shown.embedding
        nearest = nearest_tokens(shown.embedding, NEAREST) if shown.tokens else []
        attention, places = shown.attention.mul(1000).round().div(1000), points.mul(1000).round().div(1000)
        return SnapshotView(
            *(step, shown.sample, shown.line, attention.double().tolist(), shown.tokens),
            *(places.double().tolist(), nearest),
        )

    app.add_api_route("/api/runs/{name}/snapshots/{step}", get_snapshot)


def _read(folder: RunFolder, step: int) -> Snapshot:
    file = snapshot_file(folder.snapshots, step)
    if not file.is_file():
        raise APIError(404, f"the run {folder.path.name!r} has no snapshot of step {step}")
    try:
        return read_snapshot(file)
    except CheckpointError:
        raise APIError(500, f"the run {folder.path.name!r} has a damaged snapshot of step {step}") from None
