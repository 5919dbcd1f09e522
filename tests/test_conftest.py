"""What holds for all tests."""

import gzip
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_packed_bytes_do_not_name_a_test(request: pytest.FixtureRequest) -> None:
    """They hold the second in which they were packed, and workers that see other names refuse to begin."""
    name = request.config.hook.pytest_make_parametrize_id
    assert name(config=request.config, val=gzip.compress(b"text"), argname="content") == "content"
    assert name(config=request.config, val=b"text", argname="content") is None


def test_the_places_of_marked_tests_are_there(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    places = [place for every in conftest.MARKED.values() for place in every]
    assert len(places) > 20
    assert [place for place in places if not (TESTS / place).exists()] == []
