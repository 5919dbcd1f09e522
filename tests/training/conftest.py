from collections.abc import Iterator

import pytest

from training.sessions import Start, quick_beginnings, start_session


@pytest.fixture(scope="session")
def start() -> Start:
    """`start(folder, "train.max_steps=4", resume="auto")`: a trainer of folder/runs/run, ready to run."""
    return start_session


@pytest.fixture(scope="module", autouse=True)
def _quick_beginnings() -> Iterator[None]:
    with quick_beginnings():
        yield
