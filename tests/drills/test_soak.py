import contextlib
import io
from pathlib import Path

from drills.frame import Tally
from drills.soak import compare, generate, train
from training.sessions import quick_beginnings


def test_memory_and_files_do_not_grow(tmp_path: Path) -> None:
    tally = Tally("steps", "resumes", "generations")
    with quick_beginnings(), contextlib.redirect_stderr(io.StringIO()):
        compare(tally, "training", train(tmp_path, 60, 15, tally), False)
        compare(tally, "generation", generate(tmp_path / "runs" / "run", 60, 4, tally), False)
    assert tally.failures == []
