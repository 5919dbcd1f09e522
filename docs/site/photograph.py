"""Take a picture of a page in headless Chromium, for where frames are not shown."""

import io
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH = 760
HEIGHT = 1600
"""Pixels of the window. A page that is shorter is cut where it ends."""
MARGIN = 12
"""Pixels that are left below the end of a page."""
SETTLED = 4000
"""Milliseconds of the page's own clock, which runs ahead, until the picture is taken."""
COLORS = 64
"""Colors of a picture, which has flat areas and text: more would double its size."""


class NoBrowserError(Exception):
    """No browser is installed that could take a picture."""


def find_browser() -> str:
    """Return the path of Chromium or Chrome.

    Raises:
        NoBrowserError: there is none.
    """
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise NoBrowserError("pictures of pages need Chromium: make browser")


def photograph(page: str) -> bytes:
    """Return a PNG of a page of HTML.

    Raises:
        NoBrowserError: there is no Chromium.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        target = Path(folder) / "page.png"
        source.write_text(page, encoding="utf-8")
        options = (
            "--headless",
            "--no-sandbox",  # the pages are our own, and containers forbid the sandbox
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-prefers-reduced-motion",
            f"--virtual-time-budget={SETTLED}",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={target}",
        )
        command = [browser, *options, source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return _cut(Image.open(target).convert("RGB"))


def _cut(picture: Image.Image) -> bytes:
    """Return a picture as PNG of few colors, without the empty space below."""
    # A page ends where everything below has the color of the window's last corner.
    corner = picture.getpixel((picture.width - 1, picture.height - 1))
    background = Image.new("RGB", picture.size, corner)
    box = ImageChops.difference(picture, background).getbbox()
    end = picture.height if box is None else min(picture.height, box[3] + MARGIN)
    buffer = io.BytesIO()
    whole = picture.crop((0, 0, picture.width, end))
    whole.quantize(COLORS).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
