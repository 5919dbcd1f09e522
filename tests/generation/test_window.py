import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.generation.sequence import Window


@given(block_size=st.integers(1, 40), length=st.integers(1, 200))
def test_a_window_holds_all_that_fits_and_moves_by_whole_chunks(block_size: int, length: int) -> None:
    window = Window(block_size)
    start, held = window.start(length), window.of(range(length))
    assert list(held) == list(range(start, length))
    assert len(held) <= block_size
    assert (start == 0) is (length <= block_size)
    assert len(held) >= min(length, block_size - window.chunk + 1)
    assert window.start(length + 1) - start in (0, window.chunk)


@pytest.mark.parametrize(
    ("length", "start"), [(1, 0), (16, 0), (17, 4), (20, 4), (21, 8), (24, 8), (25, 12), (100, 84)]
)
def test_a_window_of_16_that_moves_by_4(length: int, start: int) -> None:
    assert Window(16).start(length) == start


@pytest.mark.parametrize(("block_size", "chunk"), [(1, 1), (3, 1), (4, 1), (8, 2), (16, 4), (1023, 255)])
def test_a_window_moves_by_a_quarter(block_size: int, chunk: int) -> None:
    assert Window(block_size).chunk == chunk
