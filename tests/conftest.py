"""Fixtures that several folders of tests share."""

import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import setuptools  # noqa: F401 - replaces distutils, which now and then fails where torch's compiler is the first to ask
import torch
from hypothesis import HealthCheck, settings

from browser import Browser, Page
from gpt.cli import train
from gpt.model import GPT
from patience import PATIENCE
from plugin_files import unload
from programs import find_browser, is_ci
from tiny import CORPUS, TINY, tiny_config
from training.sessions import quick_beginnings


def can_build_site() -> bool:
    """Return whether the packages of the extra `site` are installed."""
    return all(map(find_spec, ("jupytext", "material", "mkdocstrings")))


NOT_COLLECTED: dict[str, str] = {}
"""Folders of tests that cannot run here, and why: said at the end of a run."""
if torch.version.cuda:
    NOT_COLLECTED["fake_cuda"] = "this torch has CUDA of its own"
if not torch.cuda.is_available():
    NOT_COLLECTED["cuda"] = "torch sees no CUDA device"
if not can_build_site() and not is_ci():  # in CI its imports fail, so that nobody overlooks it
    NOT_COLLECTED["docs"] = "it needs the extra site: make setup EXTRAS=site"
collect_ignore = list(NOT_COLLECTED)

TESTS = Path(__file__).parent
MARKED = {
    "slow": (
        *("accounting/test_memory.py", "api/test_python_page.py", "benchmarks"),
        *(
            "checkpoint/test_failed_writing.py",
            "cli/test_processes.py",
            "data/test_resident_memory.py",
        ),
        *("distributed", "drills"),
        *("inspection/test_notebook.py", "interop"),
        *("export/test_gguf_file.py", "export/test_html.py", "export/test_hugging_face.py"),
        "training/test_exact_resume.py",
    ),
    "browser": ("export/test_source.py", "web"),
    "compiler": ("fake_cuda", "native"),
    "site": ("docs",),
}
"""The marks of folders and files of tests, which `make test` leaves out, by their beginnings below
`tests`.
"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no test file of which `-m` excludes every test: it may need packages that only its
    extra has.
    """
    conditions = config.option.markexpr.split(" and ")
    relative = collection_path.relative_to(TESTS).as_posix()
    for mark, places in MARKED.items():
        if f"not {mark}" in conditions and relative.startswith(places):
            return True
    return None  # as pytest itself decides


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by `MARKED`, and those that use the fixture `browser`."""
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        for mark, places in MARKED.items():
            if path.startswith(places):
                item.add_marker(mark)
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for folder, reason in NOT_COLLECTED.items():
        terminalreporter.write_line(f"tests/{folder} was not collected: {reason}")


for profile, count in {"quick": 20, "whole": 200}.items():  # of `make test` and `make test-all`
    settings.register_profile(
        profile,
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("whole")
# A shell lets its background jobs ignore Ctrl-C, and a run respects that: tests of Ctrl-C need the
# default.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # models are tiny, and pytest has a worker on each core


@pytest.fixture(scope="session", autouse=True)
def _quick_beginnings() -> Iterator[None]:
    with quick_beginnings():
        yield


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the user's environment, or leaves torch's generator moved for the next."""
    for name in ("GPT_DATA_DIR", "GPT_OFFLINE", "GPT_PROCESSOR", "GPT_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    # a slow machine prints no more lines about progress than a fast one
    monkeypatch.setattr("gpt.system.progress.ANNOUNCE_AFTER", PATIENCE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def no_plugins() -> Iterator[None]:
    """Unload plugins after a test that loads some."""
    yield
    unload()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A small text file, about 18,000 characters."""
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS * 100, encoding="utf-8")
    return path


@pytest.fixture
def tiny_model() -> GPT:
    """A tiny model in eval mode."""
    return GPT(tiny_config()).eval()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.yaml, corpus.txt and the finished run runs/tiny; do not write into it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main(["--config", "tiny.yaml"]) == 0
    return folder


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with tiny.yaml and corpus.txt."""
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium, started for the first page."""
    browser = Browser(find_browser(), tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open addresses, with the options of `Browser.open`; their consoles must stay empty."""
    pages: list[Page] = []

    def start(url: str, **options: Any) -> Page:
        page = browser.open(url, **options)
        pages.append(page)
        return page

    yield start
    lines: list[str] = []
    for page in pages:
        # read before any page is closed: the server may end then, and other pages that ask it get
        # errors
        lines += page.console
    for page in pages:
        page.close()
    assert lines == []
