"""What IPython shows for objects of the package, by its own formatters."""

import subprocess
import sys
from typing import Any

import pytest

from gpt.inspection import notebook
from gpt.model import GPT
from gpt.system.progress import in_notebook


@pytest.fixture
def formatter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The display formatter of a shell in which the package is registered."""
    import IPython
    from IPython.core.formatters import DisplayFormatter

    shell = type("Shell", (), {"display_formatter": DisplayFormatter(), "kernel": None})()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    notebook.register()
    return shell.display_formatter


def test_a_model_is_shown_by_its_parameters_and_its_modules(formatter: Any, tiny_model: GPT) -> None:
    html = formatter.format(tiny_model)[0]["text/html"]
    assert f"{sum(weight.numel() for weight in tiny_model.parameters()):,}</td>" in html
    assert "(attn): Attention(" in html


def test_a_figure_of_gpt_plot_is_shown(formatter: Any) -> None:
    from matplotlib.figure import Figure

    assert formatter.format(Figure(figsize=(1, 1)))[0]["image/png"]


def test_a_kernel_is_a_notebook_and_nothing_else_is(formatter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_notebook()
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    assert not in_notebook()
    notebook.register()  # which nothing forbids


def test_outside_of_notebooks_ipython_is_not_imported() -> None:
    code = "import sys, gpt, gpt.system.progress; gpt.system.progress.in_notebook(); print('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
