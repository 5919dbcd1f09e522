"""Tell a notebook how to show objects of the package that have no display of their own.

Nothing here imports what it shows: the notebook asks for it by name when it has such an object.
"""

import html
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpt.model import GPT


def register() -> None:
    """Register the displays of models and figures with IPython.

    Nothing happens where IPython is installed and does not run.
    """
    from IPython import get_ipython

    shell: Any = get_ipython()
    if shell is None:
        return
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type_by_name("gpt.model.gpt", "GPT", model_html)
    # pyplot registers a display of its own in place of this one, if it is imported later
    formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", figure_png)


def figure_png(figure: "Figure") -> bytes:
    """Return a figure as PNG; that of `gpt.plot` is unknown to pyplot, which would not show it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def model_html(model: "GPT") -> str:
    """Return the parameters of a model by component, and its modules as torch prints them."""
    from gpt.extras.inspection.show import parameters

    modules = f"<details><summary>modules</summary><pre>{html.escape(repr(model))}</pre></details>"
    return parameters(model)._repr_html_() + modules
