"""How a run learned, and a training that is watched, in a browser."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from browser import Page
from gpt.checkpoint import RunFolder
from http_server import Serve
from patience import PATIENCE
from tiny import CORPUS

PART = "document.querySelector('[data-part={}]')"
AT = PART.format("sample-at") + "?.textContent"
TEXT = PART.format("sample-text") + "?.textContent"
STATE = PART.format("state") + "?.textContent"
Open = Callable[..., Page]


@pytest.fixture
def two_runs(trained: Path, tmp_path: Path) -> Path:
    """A runs folder with two finished runs, `tiny` and `other`."""
    folder = tmp_path / "runs"
    for name in ("tiny", "other"):
        shutil.copytree(trained / "runs" / "tiny", folder / name)
    return folder


def test_a_run_is_looked_at_along_a_slider(trained: Path, serve: Serve, visit: Open) -> None:
    with serve(folder=trained / "runs") as served:
        page = visit(f"{served.url}/#learning")
        page.wait_for(f"{AT} === 'step 6'", PATIENCE)  # by itself
        drawn = PART.format("mapped") + "?.dataset.step"
        page.wait_for(f"{drawn} === '6'", PATIENCE)
        assert page.run("document.querySelectorAll('.map-token').length") == len(set(CORPUS))
        assert page.run("document.querySelector('.growth-heads').width") == 2 * 17 - 1
        where = "document.querySelector('.map-token').style.transform"
        last = json.dumps(page.run(where))
        page.run(f"{PART.format('map')}.focus()")
        page.press("ArrowRight")
        assert page.run("document.querySelectorAll('.map-token.near').length") == 4
        page.run(f"{PART.format('sample-step')}.focus()")
        for _ in range(4):
            page.press("ArrowLeft")
        page.wait_for(f"{AT} === 'step 0' && {drawn} === '0' && {where} !== {last}", PATIENCE)
        page.point(PART.format("play"), click=True)
        page.wait_for(f"{AT} === 'step 6' && {where} === {last}", PATIENCE)


def test_a_run_is_followed_while_it_trains_and_another_can_be_chosen(two_runs: Path, serve: Serve, visit: Open) -> None:
    run = RunFolder(two_runs / "tiny")
    lines = run.metrics.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 2]
    run.metrics.write_text("".join(kept))
    for step in (3, 6):
        (run.samples / f"step-{step:06d}.txt").rename(two_runs / f"{step}.txt")
    (two_runs / "other" / "metrics.jsonl").touch()
    run.lock()
    try:
        with serve(folder=two_runs) as served:
            page = visit(f"{served.url}/#learning", width=400, dark=True, hurry=25)
            page.wait_for(f"{STATE}?.startsWith('training: step 2 of 6')")  # the one that trains is chosen
            (two_runs / "3.txt").rename(run.samples / "step-000003.txt")
            run.metrics.write_text("".join(lines))
            page.wait_for(f"{STATE}.startsWith('training: step 6 of 6')")
            run.metrics.write_text("".join(kept))  # as going on from an earlier checkpoint does
            page.wait_for(f"{STATE}.startsWith('training: step 2 of 6')")
            chosen = PART.format("runs")
            page.run(f"{chosen}.value = 'other'; {chosen}.dispatchEvent(new Event('change'))")
            best = json.loads((two_runs / "other" / "best.json").read_text())["val_loss"]
            page.wait_for(f"{STATE}.startsWith('step 6 of 6')")
            assert f"best validation loss {best:.4f}" in page.run(STATE)
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
    finally:
        run.unlock()


def test_what_comes_last_is_shown_and_what_is_damaged_is_said(
    trained: Path, tmp_path: Path, serve: Serve, visit: Open
) -> None:
    shutil.copytree(trained / "runs" / "tiny", tmp_path / "watched")
    with serve(folder=tmp_path) as served:
        run = RunFolder(tmp_path / "watched")
        sample = run.samples / "step-000006.txt"
        written = sample.read_text()
        sample.unlink()  # as it is while the last evaluation lasts
        page = visit(f"{served.url}/#learning", hurry=25)
        page.wait_for(f"{AT} === 'step 6'", PATIENCE)
        sample.write_text(written)
        page.wait_for(f"{TEXT} === {json.dumps(written[:-1])}", PATIENCE)  # of the step that is shown already
        whole = run.snapshot(6).read_bytes()
        run.snapshot(6).write_bytes(b"damaged")
        page.run("location.reload()")
        page.wait_for(f"{PART.format('failed')}?.textContent.includes('damaged')", PATIENCE)
        assert page.run(TEXT) == written[:-1]
        run.snapshot(6).write_bytes(whole)
        page.wait_for(f"{PART.format('failed')}.textContent === ''", PATIENCE)
        page.point(PART.format("play"), click=True)
        for file in (*run.samples.iterdir(), *run.snapshots.iterdir()):
            file.unlink()
        page.wait_for(f"{PART.format('growth')}.hidden && {PART.format('play')}.textContent === 'Play'", PATIENCE)
        assert page.run(STATE).endswith("no sample yet")
        assert all(
            "/snapshots/" in line or "/samples/" in line for line in page.console
        )  # which the browser reports, too
        page.console.clear()
