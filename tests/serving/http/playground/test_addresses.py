"""Where the views of the playground are found."""

from collections.abc import Callable

import pytest

from browser import Page

TITLES = {
    "write": "Write",
    "compare": "Compare",
    "attention": "Attention",
    "lens": "Logit lens",
    "logit-lens": "Logit lens",
    "surprisal": "Surprisal",
    "trace": "Shapes",
    "shapes": "Shapes",
    "runs": "Runs",
    "training": "Train",
    "Train": "Train",
}


@pytest.mark.parametrize("address", TITLES)
def test_an_address_opens_its_view_at_the_top(address: str, open_page: Callable[..., Page]) -> None:
    """Not where an element of the same id is, which a browser scrolls to."""
    page = open_page(address, width=400, height=300)
    if address.lower().startswith("train"):
        page.wait_for("document.querySelector('[data-part=status]').textContent !== ''")
        page.console.clear()  # the browser notes that the server refuses to train
    assert page.text("h1") == TITLES[address]
    assert page.run(f"document.getElementById('{address}')") is None
    page.run(f"location.hash = ''; location.hash = '{address}'")
    assert page.run("scrollY") == 0
