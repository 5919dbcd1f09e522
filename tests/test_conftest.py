"""What holds for all tests."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_the_places_of_marked_tests_are_there(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    places = [place for every in conftest.MARKED.values() for place in every]
    assert len(places) > 20
    assert [place for place in places if not (TESTS / place).exists()] == []
