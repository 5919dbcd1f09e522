import pytest

from training.sessions import Start, start_session


@pytest.fixture(scope="session")
def start() -> Start:
    """`start(folder, "train.max_steps=4", resume="auto")`: a trainer of folder/runs/run, ready to run."""
    return start_session
