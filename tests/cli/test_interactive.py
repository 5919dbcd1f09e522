"""`scripts/sample.py --interactive`: a session in which prompts are typed."""

import io
import signal
from collections.abc import Callable, Iterator

import pytest

from cli.conftest import Call
from gpt.cli.sample import HELP
from gpt.generation import TextBatch, TextChunk

pytestmark = pytest.mark.usefixtures("here")
Session = Callable[..., tuple[str, str]]
FIVE = "sample --max-new-tokens 5 --prompt"


@pytest.fixture
def session(run: Call, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Output and messages of an interactive session in which these lines are typed, at a terminal or not."""

    def session(typed: bytes | str, options: str = "", terminal: bool = False) -> tuple[str, str]:
        stdin = io.TextIOWrapper(io.BytesIO(typed if isinstance(typed, bytes) else typed.encode()), encoding="utf-8")
        monkeypatch.setattr(stdin, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr("sys.stdin", stdin)
        _, out, err = run(f"sample --interactive --checkpoint runs/tiny --max-new-tokens 5 --seed 1337 {options}")
        assert err.startswith(HELP + "\n")
        return out, err.removeprefix(HELP + "\n")

    return session


def test_a_session_answers_each_prompt_and_ends_with_its_input(session: Session, run: Call) -> None:
    prompts = (("It", "1337"), ("", "1338"), ("Tom", "1339"))
    assert session("It\n\nTom\n") == ("".join(run(FIVE, prompt, "--seed", seed).out for prompt, seed in prompts), "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a€b¥".encode(), "'€' at 1, '¥' at 3"),
        (b"a" * 17, "17 tokens, more than the window of 16"),
        (b"It\xff", "'\ufffd' at 2"),
    ],
)
def test_a_mistake_in_a_session_is_said_in_one_line_and_the_session_goes_on(
    session: Session, run: Call, line: bytes, words: str
) -> None:
    out, err = session(line + b"\nIt\n")
    assert out == run(FIVE, "It").out
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_session_computes_as_its_options_say(session: Session, run: Call) -> None:
    out, _ = session("a€b\n", "--backend eager --unknown drop --seed 3")
    assert out == "a€b" + run(FIVE, "ab", "--seed", "3").out[2:]


def test_ctrl_c_at_the_prompt_asks_again(session: Session, run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter([KeyboardInterrupt, "It", EOFError])

    def answer(_: str) -> str:
        one = next(typed)
        if isinstance(one, str):
            return one
        raise one

    monkeypatch.setattr("builtins.input", answer)
    assert session("")[0] == "\n" + run(FIVE, "It").out
    assert next(typed, None) is None


def test_ctrl_c_in_a_text_ends_that_text_only(session: Session, run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other = (run(FIVE, "It", "--seed", seed).out for seed in ("1337", "1338"))
    stopped: list[bool] = []

    class InterruptedOnce(TextBatch):
        def __iter__(self) -> Iterator[TextChunk]:
            for count, piece in enumerate(super().__iter__()):
                if count == 3 and not stopped:
                    stopped.append(True)
                    signal.raise_signal(signal.SIGINT)
                yield piece

    monkeypatch.setattr("gpt.generation.TextBatch", InterruptedOnce)
    assert session("It\nIt\n") == (whole[: len("It") + 3] + "\n" + other, "")


def test_a_session_asks_for_prompts_where_someone_types(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        raise EOFError

    monkeypatch.setattr("builtins.input", answer)
    session("")
    session("", terminal=True)
    assert asked == ["", "> "]
