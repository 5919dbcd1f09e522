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
    """Register the displays of models and figures with IPython; nothing happens where it does not run."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    if shell is None:
        return
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type_by_name("gpt.model.gpt", "GPT", model_html)
    # pyplot's own comes later
    formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", figure_png)


def figure_png(figure: "Figure") -> bytes:
    """Return the figure that `gpt.plot` made, which pyplot does not know and does not show."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def model_html(model: "GPT") -> str:
    """Return the parameters of a model by component, and its modules as torch prints them."""
    from gpt.extras.inspection.show import parameters

    modules = f"<details><summary>modules</summary><pre>{html.escape(repr(model))}</pre></details>"
    return parameters(model)._repr_html_() + modules
