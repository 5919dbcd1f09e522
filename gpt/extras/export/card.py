"""A picture of a text that a model writes: each character on the color of its probability."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.config.ranges import SEEDS
from gpt.data.pairs import MARKS, TURN, with_signs
from gpt.extras.about import about_loaded
from gpt.extras.inspection.example import example_of
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.snapshot_text import MAX_ITEMS, TEXT_CHARACTERS
from gpt.generation.batch import TextBatch
from gpt.generation.runtime import Runtime
from gpt.generation.text import encode_typed_text
from gpt.system.errors import GPTError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 1200
HEIGHT = 630
"""The size in pixels of a picture that other sites show beside a link, and of `card.js`."""
MARGIN = 60
FONT = 26
"""Pixels of the text's font."""
CELL = 0.602 * FONT
"""Width of a character: the advance of DejaVu Sans Mono, which matplotlib brings, is 0.602."""
LINE = 38
SMALL_FONT = 22
"""Pixels of the font of what is said about the model."""
SMALL_LINE = 32
SMALL_COLUMNS = 78
"""Characters of a line about the model, whose widths differ."""
POINTS_PER_PIXEL = 72 / 100
"""matplotlib measures fonts in points, and a figure of 100 dots per inch has 72 points there."""
RAMP = ["fbf0f6", "f5d0e4", "eaaacc", "db82b2", "c65a97", "a63c7c", "822b61", "5d1f46", "39132b"]
"""The colors of the pages in the light theme, see `colors.js`, from certain to unlikely."""
MAX_BITS = 8
"""The surprise from which on a color is the last of the ramp."""
LIGHT = 0.18
"""The luminance above which black reads better than white."""
INK = "#1c2330"
QUIET = "#566072"
"""The colors of text in the light theme, see `base.css`."""


class Piece(NamedTuple):
    """What a token adds to a text.

    Attributes:
        bits: the surprise at it; None if nothing came before it.
        is_given: whether it is of the prompt.
    """

    text: str
    bits: float | None
    is_given: bool


def render_card(loaded: Loaded) -> bytes:
    """Return a PNG of a text that a model writes, over what the model is.

    The text is that with which a page of the model begins.

    Raises:
        GPTError: matplotlib is not installed, or the model's numbers are not finite.
    """
    try:
        # Not pyplot: it would keep the figure until it is closed, and choose a backend.
        from matplotlib.figure import Figure
    except ImportError:
        raise GPTError(
            "matplotlib is not installed; install it with: pip install 'glassgpt[plot]'"
        ) from None
    about = about_loaded(loaded)
    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, facecolor="white")
    for piece, column, row in place_pieces(card_pieces(loaded, about.prompt)):
        _draw_piece(figure, piece, column, row)
    y = MARGIN / 2
    # An item of a list, or an answer, may stand in the training text.
    if loaded.config.sample.begin_id is None:
        _draw_text(figure, "This text did not exist before.", MARGIN, y, INK, SMALL_FONT)
    for line in reversed(textwrap.wrap(about.sentence, SMALL_COLUMNS)):
        y += SMALL_LINE
        _draw_text(figure, line, MARGIN, y, QUIET, SMALL_FONT)
    content = io.BytesIO()
    # Without metadata, so that the same text gives the same bytes.
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def card_pieces(loaded: Loaded, prompt: str | None) -> Iterator[Piece]:
    """Yield the prompt of a model, and what it writes after it by its own configuration.

    Args:
        prompt: that of the model's snapshots; None: its example begins the text.
    """
    sample = loaded.config.sample
    is_answering = TURN in sample.stop
    is_list = sample.begin_id is not None and not is_answering
    # The example of questions and answers is a question with its answer.
    if is_answering or prompt is None:
        prompt = example_of(loaded)
    if is_list:
        prompt = ""
    params = sample.params(
        max_new_tokens=TEXT_CHARACTERS, logprobs=0, overflow="slide", long_prompt="crop"
    )
    yield from _given_pieces(loaded, prompt, params)
    if is_answering:
        return
    num_characters = 0
    num_texts = MAX_ITEMS if is_list else 1
    for number in range(num_texts):
        seeded = params.model_copy(update={"seed": (params.seed + number) % SEEDS})
        for piece in _written_pieces(loaded, prompt, seeded):
            yield piece
            num_characters += len(piece.text)
            if num_characters >= TEXT_CHARACTERS:
                return
        yield Piece("\n", None, False)


def _given_pieces(loaded: Loaded, prompt: str, params: SamplingParams) -> Iterator[Piece]:
    """Yield the tokens of a prompt."""
    if not prompt:
        return
    block_size = loaded.model.config.block_size
    # An example shows marks as signs, which are read as marks again.
    ids = encode_typed_text(loaded.tokenizer, prompt, params)[-block_size:]
    bits: list[float | None] = [None]
    if len(ids) > 1:
        bits += surprisal(loaded.model, torch.tensor(ids)).bits.tolist()
    decoder = loaded.tokenizer.stream()
    for index, each in zip(ids, bits, strict=True):
        text = decoder.feed(index)
        if text in MARKS:
            text = "\n"  # between a question and its answer
        if index != params.begin_id:
            yield Piece(text, each, True)


def _written_pieces(loaded: Loaded, prompt: str, params: SamplingParams) -> Iterator[Piece]:
    """Yield the tokens that a model writes after a prompt."""
    for chunk in TextBatch(Runtime(loaded.model), loaded.tokenizer, [prompt], params):
        bits = None
        if chunk.token is not None and chunk.token.logprob is not None:
            bits = -chunk.token.logprob / math.log(2)  # from nats
        yield Piece(with_signs(chunk.text), bits, False)


def place_pieces(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, int, int]]:
    """Yield pieces of one line each with their columns and rows, as many as a card has room for.

    A piece that does not fit into its line begins the next one.
    """
    columns = int((WIDTH - 2 * MARGIN) / CELL)
    rows = (HEIGHT - 3 * MARGIN) // LINE
    column = 0
    row = 0
    for piece in pieces:
        for number, text in enumerate(piece.text.split("\n")):
            is_after_line_end = number > 0
            is_too_wide = column + len(text) > columns
            # Line ends at the top of a card would leave it empty there.
            if (is_after_line_end or is_too_wide) and (row > 0 or column > 0):
                row += 1
                column = 0
            if row >= rows:
                return
            if text:
                yield piece._replace(text=text), column, row
            column += len(text)


def _draw_piece(figure: "Figure", piece: Piece, column: int, row: int) -> None:
    """Draw a piece on its color; a line marks one of the prompt."""
    x = MARGIN + column * CELL
    y = HEIGHT - MARGIN - (row + 1) * LINE  # matplotlib counts from below
    width = len(piece.text) * CELL
    color = INK
    if piece.bits is not None:
        background = color_of(piece.bits)
        _draw_box(figure, (x, y + 4, width, LINE - 4), background)
        color = "black" if _luminance(background) > LIGHT else "white"
    if piece.is_given:
        _draw_box(figure, (x, y + 2, width, 2), _channels(QUIET[1:]))
    for number, character in enumerate(piece.text):
        middle = y + 2 + LINE / 2
        _draw_text(figure, character, x + number * CELL, middle, color)


def _draw_box(
    figure: "Figure", box: tuple[float, float, float, float], color: Sequence[float]
) -> None:
    """Draw a rectangle, given by its left and lower edge, its width and its height in pixels."""
    from matplotlib.patches import Rectangle

    left, lower, width, height = box
    # half a pixel more, so that no gap is seen between two of them
    corner = (left / WIDTH, lower / HEIGHT)
    size = ((width + 0.5) / WIDTH, height / HEIGHT)
    figure.add_artist(Rectangle(corner, *size, facecolor=tuple(color), linewidth=0))


def _draw_text(
    figure: "Figure",
    text: str,
    x: float,
    y: float,
    color: str,
    size: int = FONT,
) -> None:
    """Draw a text whose left edge and middle are at x and y, in pixels.

    That of the large font is in cells of one width.
    """
    family = "DejaVu Sans Mono" if size == FONT else "DejaVu Sans"
    figure.text(
        x / WIDTH,
        y / HEIGHT,
        text,
        color=color,
        fontsize=size * POINTS_PER_PIXEL,
        fontfamily=family,
        verticalalignment="center_baseline",
        parse_math=False,  # a dollar sign begins no formula
    )


def color_of(bits: float) -> tuple[float, float, float]:
    """Return red, green and blue, from 0 to 1, of the surprise at a token."""
    place = min(max(bits, 0.0) / MAX_BITS, 1.0) * (len(RAMP) - 1)
    below = min(int(place), len(RAMP) - 2)
    share = place - below
    pairs = zip(_channels(RAMP[below]), _channels(RAMP[below + 1]), strict=True)
    red, green, blue = [low + (high - low) * share for low, high in pairs]
    return red, green, blue


def _channels(color: str) -> tuple[float, float, float]:
    """Return red, green and blue, from 0 to 1, of six hexadecimal digits."""
    red, green, blue = [int(color[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    return red, green, blue


def _luminance(color: tuple[float, float, float]) -> float:
    """Return the relative luminance of a color, by the weights of Rec. 709 and a gamma of 2.2."""
    red, green, blue = [channel**2.2 for channel in color]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
