"""Tables as lines of text, in terminals of any width."""

import pytest

from gpt.extras.inspection.rendering.tables import Table

TABLE = Table(
    "the heads of a small model, in bits per token",
    ("head", "name", "change"),
    [("0", "previous", "+0.25"), ("1", "\033[48;5;60minduction\033[0m", "-1.5")],
    "><>",
    "change: without the head\nof the loss",
)
WHOLE = """\
the heads of a small model, in bits per token
head  name       change
----  ---------  ------
   0  previous    +0.25
   1  \033[48;5;60minduction\033[0m    -1.5
change: without the head
of the loss"""
FOLDED = """\
the heads of a small
model, in bits per
token
head  name
  change
----  ---------
  ------
   0  previous
   +0.25
   1  \033[48;5;60minduction\033[0m
    -1.5
change: without the
head of the loss"""
WRAPPED = """\
the heads
of a
small
model, in
bits per
token
head
  name
  change
----
  -------
  ------
   0
  previou
  s
   +0.25
   1
  inducti
  on
    -1.5
change:
without
the head
of the
loss"""


@pytest.mark.parametrize(
    ("width", "expected"), [(None, WHOLE), (45, WHOLE), (21, FOLDED), (9, WRAPPED)]
)
def test_table_fits_a_width(width: int | None, expected: str) -> None:
    assert TABLE.text(width) == expected


def test_table_shows_itself_whole() -> None:
    assert repr(TABLE) == WHOLE
