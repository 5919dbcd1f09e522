"""What holds for all tests."""

import gzip

import pytest


def test_packed_bytes_do_not_name_a_test(request: pytest.FixtureRequest) -> None:
    """They hold the second in which they were packed, and workers that see other names refuse to begin."""
    name = request.config.hook.pytest_make_parametrize_id
    assert name(config=request.config, val=gzip.compress(b"text"), argname="content") == "content"
    assert name(config=request.config, val=b"text", argname="content") is None
