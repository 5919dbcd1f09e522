"""What IPython shows for objects of the package, by its own formatters."""

import subprocess
import sys

import pytest

from gpt.extras.inspection import notebook
from gpt.model import GPT
from gpt.system.progress import in_notebook


def test_models_and_figures_are_shown_in_a_notebook(tiny_model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    from IPython.core.formatters import DisplayFormatter
    from matplotlib.figure import Figure

    shell = type("Shell", (), {"display_formatter": DisplayFormatter(), "kernel": None})()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    notebook.register()
    html = shell.display_formatter.format(tiny_model)[0]["text/html"]
    assert f"{sum(weight.numel() for weight in tiny_model.parameters()):,}</td>" in html
    assert "(attn): Attention(" in html
    assert shell.display_formatter.format(Figure(figsize=(1, 1)))[0]["image/png"]
    assert in_notebook()
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert not in_notebook()
    notebook.register()  # which nothing forbids


def test_ipython_is_not_imported_outside_of_notebooks() -> None:
    code = "import sys, gpt, gpt.system.progress; gpt.system.progress.in_notebook(); print('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
