"""`scripts/sample.py --interactive`: a session in which prompts and commands are typed."""

import io
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.sampling import text_of
from gpt.cli import interactive, sample
from gpt.generation import TextBatch, TextChunk


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


class Typed(io.StringIO):
    """Standard input: lines, from a terminal or not."""

    def __init__(self, lines: str, terminal: bool) -> None:
        super().__init__(lines)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def session(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    *options: str,
    terminal: bool = False,
) -> tuple[str, str]:
    """Output and messages of an interactive session in which these lines are typed."""
    monkeypatch.setattr("sys.stdin", Typed(lines, terminal))
    assert sample.main(["--interactive", "--checkpoint", "runs/tiny", "--max-new-tokens", "5", *options]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_session_answers_each_prompt_and_ends_with_its_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = session(capsys, monkeypatch, "It\n\nTom\n")
    assert out == "".join(text_of(capsys, "--prompt", prompt, "--max-new-tokens", "5") for prompt in ("It", "", "Tom"))
    assert err.rstrip("\n") == interactive.HELP


def test_settings_hold_for_the_prompts_after_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "It\n/temperature 0\n/max-new-tokens 7\nIt\n/stop [e, t]\n/seed 3\n/settings\n"
    out, err = session(capsys, monkeypatch, lines)
    greedy = text_of(capsys, "--prompt", "It", "--max-new-tokens", "7", "--greedy")
    assert out == text_of(capsys, "--prompt", "It", "--max-new-tokens", "5") + greedy
    for line in ("/temperature 0.0", "/max_new_tokens 7", "/stop ('e', 't')", "/seed 3", "/top_p 1.0"):
        assert f"  {line}\n" in err


def test_one_stop_text_is_taken_as_it_is_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = session(capsys, monkeypatch, "/stop ROMEO:\n/settings\n")
    assert "  /stop ('ROMEO:',)\n" in err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/help", ""),
        ("/", "error: /: unknown command\n"),
        ("/quit", "error: /quit: unknown command\n"),
        ("/temprature 1", "error: /temprature: unknown command\n"),
        ("/temperature", "error: /temperature: a value is missing\n"),
        ("/top_k  ", "error: /top_k: a value is missing\n"),
    ],
)
def test_a_wrong_command_is_named_and_shows_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, error: str
) -> None:
    out, err = session(capsys, monkeypatch, line + "\n")
    assert out == ""
    assert err == f"{interactive.HELP}\n{error}{interactive.HELP}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/temperature -1", "temperature: got -1"),
        ("/temperature hot", "temperature: got 'hot'"),
        ("/top_p 2", "top-p: got 2"),
        ("/seed 1.5", "seed: got 1.5"),
        ("/stop [a", "/stop: "),
        ("a€b¥", "'€' at 1, '¥' at 3"),
        ("a" * 17, "17 tokens, more than the window of 16"),
    ],
)
def test_a_mistake_in_a_session_is_said_in_one_line_and_the_session_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, words: str
) -> None:
    out, err = session(capsys, monkeypatch, f"{line}\nIt\n")
    assert out == text_of(capsys, "--prompt", "It", "--max-new-tokens", "5")
    message = err.removeprefix(interactive.HELP + "\n")
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert words in message


def test_a_session_computes_as_its_options_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = session(capsys, monkeypatch, "a€b\n", "--no-cache", "--unknown", "drop", "--seed", "3")
    plain = text_of(capsys, "--prompt", "ab", "--max-new-tokens", "5", "--seed", "3")
    assert out == "a€b" + plain[2:]


def test_ctrl_c_at_the_prompt_asks_again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter([KeyboardInterrupt, "It", EOFError])

    def answer(_: str) -> str:
        one = next(typed)
        if isinstance(one, str):
            return one
        raise one

    monkeypatch.setattr("builtins.input", answer)
    out, _ = session(capsys, monkeypatch, "")
    assert out == "\n" + text_of(capsys, "--prompt", "It", "--max-new-tokens", "5")
    assert next(typed, None) is None


def test_ctrl_c_in_a_text_ends_that_text_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text_of(capsys, "--prompt", "It", "--max-new-tokens", "5")
    stopped: list[bool] = []

    class InterruptedOnce(TextBatch):
        def __iter__(self) -> Iterator[TextChunk]:
            for count, piece in enumerate(super().__iter__()):
                if count == 3 and not stopped:
                    stopped.append(True)
                    signal.raise_signal(signal.SIGINT)
                yield piece

    monkeypatch.setattr(interactive, "TextBatch", InterruptedOnce)
    out, err = session(capsys, monkeypatch, "It\nIt\n")
    assert out == whole[: len("It") + 3] + "\n" + whole
    assert "error" not in err


def test_a_session_asks_for_prompts_where_someone_types(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        raise EOFError

    monkeypatch.setattr("builtins.input", answer)
    session(capsys, monkeypatch, "")
    session(capsys, monkeypatch, "", terminal=True)
    assert asked == ["", "> "]


def test_typed_bytes_that_are_not_text_do_not_end_a_session(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"It\xff\nIt\n"), encoding="utf-8"))
    assert sample.main(["--interactive", "--checkpoint", "runs/tiny", "--max-new-tokens", "5"]) == 0
    captured = capsys.readouterr()
    assert "'\ufffd' at 2" in captured.err
    assert len(captured.out) == len("It") + 5 + 1
