"""Tests of what builds wheels find its modules."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "packaging"))
