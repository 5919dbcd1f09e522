import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.generation.backends import Window

sizes = st.integers(1, 40).flatmap(lambda block_size: st.tuples(st.just(block_size), st.integers(1, block_size)))
lengths = st.integers(1, 200)


@given(length=lengths, size=sizes)
def test_a_window_holds_the_whole_text_while_it_fits_and_never_more_than_fits(
    length: int, size: tuple[int, int]
) -> None:
    block_size, chunk = size
    start = Window(block_size, chunk).start(length)
    assert length - start <= block_size
    assert (start == 0) is (length <= block_size)


@given(length=lengths, size=sizes)
def test_a_window_that_moved_lacks_less_than_a_chunk(length: int, size: tuple[int, int]) -> None:
    block_size, chunk = size
    held = len(Window(block_size, chunk).of(range(length)))
    assert held >= min(length, block_size - chunk + 1)


@given(length=lengths, size=sizes)
def test_a_window_moves_forward_by_whole_chunks(length: int, size: tuple[int, int]) -> None:
    block_size, chunk = size
    window = Window(block_size, chunk)
    moved = window.start(length + 1) - window.start(length)
    assert moved in (0, chunk)


@given(length=lengths, block_size=st.integers(1, 40))
def test_moving_by_one_always_shows_the_last_tokens(length: int, block_size: int) -> None:
    assert list(Window(block_size, 1).of(range(length))) == list(range(length))[-block_size:]


@pytest.mark.parametrize(
    ("length", "start"), [(1, 0), (16, 0), (17, 4), (20, 4), (21, 8), (24, 8), (25, 12), (100, 84)]
)
def test_a_window_of_16_that_moves_by_4(length: int, start: int) -> None:
    assert Window(16, 4).start(length) == start


@pytest.mark.parametrize(("block_size", "chunk"), [(1, 1), (3, 1), (4, 1), (8, 2), (16, 4), (1023, 255)])
def test_a_window_moves_by_a_quarter_unless_told(block_size: int, chunk: int) -> None:
    assert Window.build(block_size) == Window(block_size, chunk)


def test_a_window_does_not_move_further_than_its_size() -> None:
    assert Window.build(16, 99) == Window(16, 16)
    assert Window.build(16, 5) == Window(16, 5)
