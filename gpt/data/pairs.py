"""Read questions and answers from JSON lines or tables of two columns, as the texts of items.

A text is the question, `ANSWER` and the answer; in a conversation `TURN` and the next question
follow. Each mark is one control character of ASCII, which texts must not contain. The same template
therefore serves all tokenizers, and a question can never be read as an answer.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from gpt.data.corpus_text import CorpusText
from gpt.system.errors import DataError, quoted

END_OF_TEXT = "\x1e"
"""Ends each item that may have line ends of its own: the record separator of ASCII."""
ANSWER = "\x1f"
"""Stands between a question and its answer: the unit separator of ASCII."""
TURN = "\x1d"
"""Ends an answer that another question follows: the group separator of ASCII."""
MARKS = {
    END_OF_TEXT: "record separator",
    ANSWER: "unit separator",
    TURN: "group separator",
}
"""Characters that items may not contain, with their names, since they mark where items end."""
SIGNS = {END_OF_TEXT: "␞", ANSWER: "␟", TURN: "␝"}
"""Signs by which users see and type marks: Unicode's pictures of these control characters."""
JSON_LINES = (".jsonl", ".ndjson")
"""Suffixes of files with an object in each line."""
TABLES = (".tsv", ".csv")
"""Suffixes of files with two columns, which tabs or commas separate."""
SUFFIXES = (*JSON_LINES, *TABLES)
"""Suffixes of files with questions and answers."""
ALPACA_KEYS = ("instruction", "output")
"""The keys of datasets in the form of Stanford Alpaca, which may have an `input` too."""
PAIR_KEYS = (
    ("prompt", "answer"),
    ("question", "answer"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ALPACA_KEYS,
)
"""The keys that the usual datasets have for a question and its answer."""
FORMS = '{"prompt": ..., "answer": ...} or {"messages": [...]}'


class Message(NamedTuple):
    """A message of a conversation.

    Attributes:
        role: system, user or assistant.
    """

    role: str
    text: str


def read_pairs(corpus: CorpusText) -> list[str]:
    """Return the text of each pair or conversation of a corpus, in the order of its files.

    Raises:
        DataError: a line is neither; the message names the file and the line.
    """
    return [text for _, text in pairs_with_places(corpus)]


def find_pair(corpus: CorpusText, wanted: str) -> str | None:
    """Return the file and line of the first pair with the text `wanted`, or None."""
    for place, text in pairs_with_places(corpus):
        if text == wanted:
            return place
    return None


def pairs_with_places(corpus: CorpusText) -> Iterator[tuple[str, str]]:
    """Yield the place of each pair or conversation, which is its file and line, and its text."""
    forms: set[str] = set()
    for file in corpus.files:
        text = "".join(CorpusText([file]).pieces())
        for number, entry in _numbered_entries(file, text):
            place = f"{file}, line {number:,}"
            if isinstance(entry, str):
                form, messages = _read_json(entry, place)
            else:
                form = "table"
                messages = _read_columns(entry, place, is_first=number == 1)
            forms.add(form)
            if len(forms) > 1:
                raise DataError(f"{place}: another form than the lines before; use one of {FORMS}")
            # The header of a table has no messages.
            if messages:
                yield place, _conversation_text(messages, place)


def _numbered_entries(file: Path, text: str) -> Iterator[tuple[int, str | list[str]]]:
    """Yield the number of each line, and the line itself, or its columns if it is of a table.

    Empty lines are left out.
    """
    if file.suffix == ".csv":
        yield from _rows_of_csv(file, text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.split("\t") if file.suffix == ".tsv" else line


def _rows_of_csv(file: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line in which each row begins, and its columns.

    Quoted columns may have commas, and lines of their own.
    """
    rows = csv.reader(StringIO(text, newline=""), strict=True)
    number = 1
    try:
        for columns in rows:
            if columns:
                yield number, columns
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}, line {number:,}: not comma-separated values ({error})") from None


def with_signs(text: str) -> str:
    """Return a text with each mark replaced by its sign."""
    for mark, sign in SIGNS.items():
        text = text.replace(mark, sign)
    return text


def with_marks(text: str) -> str:
    """Return a text with each sign replaced by its mark."""
    for mark, sign in SIGNS.items():
        text = text.replace(sign, mark)
    return text


def looks_like_pairs(corpus: CorpusText) -> bool:
    """Return whether all files have a suffix of `SUFFIXES`, and the first line is a pair.

    JSON lines and tables with other content are read as running text. Only the first line is looked
    at, since it decides what a user meant; a mistake in a later line is an error.
    """
    if any(file.suffix not in SUFFIXES for file in corpus.files):
        return False
    first_line = _first_line(corpus)
    if corpus.files[0].suffix == ".tsv":
        return first_line.count("\t") == 1
    if corpus.files[0].suffix == ".csv":
        # Verse and prose have commas too, so that only a header tells what such a table is.
        return _is_header(first_line.replace('"', "").split(","))
    value = first_object(corpus)
    if value is None:
        return False
    # A prompt without an answer is meant to be a pair, and is refused with its line later.
    is_meant = not value.keys().isdisjoint({"prompt", "messages"})
    return is_meant or _pair_keys(value) is not None


def first_object(corpus: CorpusText) -> dict[str, Any] | None:
    """Return the object in the first line of JSON lines, or None if there is none."""
    try:
        value = json.loads(_first_line(corpus))
    except (ValueError, RecursionError):  # the latter where lists are nested deeply
        return None
    return value if isinstance(value, dict) else None


def _first_line(corpus: CorpusText) -> str:
    return next(corpus.pieces(), "").lstrip("\n").partition("\n")[0]


def _pair_keys(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the keys of the question and the answer in an object, or None if it is no pair."""
    return next((keys for keys in PAIR_KEYS if value.keys() >= set(keys)), None)


def _is_header(columns: Sequence[str]) -> bool:
    """Return whether the first line of a table only names its columns."""
    return tuple(name.lower() for name in columns) in PAIR_KEYS


def _read_columns(columns: Sequence[str], place: str, is_first: bool) -> list[Message]:
    """Return the question and the answer of a line of a table, or nothing for its header."""
    if is_first and _is_header(columns):
        return []
    if len(columns) != 2:
        raise DataError(f"{place}: {len(columns)} columns, expected a question and its answer")
    return [Message("user", columns[0]), Message("assistant", columns[1])]


def _read_json(line: str, place: str) -> tuple[str, list[Message]]:
    """Return the form of a line of JSON, which is its keys or `messages`, and its messages."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # lists may be nested too deeply
        raise DataError(f"{place}: not JSON ({error}); expected {FORMS}") from None
    if not isinstance(value, dict):
        raise DataError(f"{place}: {quoted(line, 60)}; expected {FORMS}")
    entries = value.get("messages")
    if isinstance(entries, list):
        return "messages", [_read_message(entry, place) for entry in entries]
    keys = _pair_keys(value)
    if keys is None:
        problem = "a prompt without an answer" if "prompt" in value else quoted(line, 60)
        raise DataError(f"{place}: {problem}; expected {FORMS}")
    form = " and ".join(keys)
    question, answer = (value[key] for key in keys)
    if not isinstance(question, str) or not isinstance(answer, str):
        raise DataError(f"{place}: {form} must be texts; expected {FORMS}")
    if keys == ALPACA_KEYS and value.get("input"):
        # The text that the instruction is about, for example a sentence to translate.
        question = f"{question}\n{value['input']}"
    return form, [Message("user", question), Message("assistant", answer)]


def _read_message(entry: Any, place: str) -> Message:
    match entry:
        case {"role": "system" | "user" | "assistant" as role, "content": str(content)}:
            return Message(role, content)
    raise DataError(
        f"{place}: a message needs a role, which is system, user or assistant, and a content"
    )


def _conversation_text(messages: Sequence[Message], place: str) -> str:
    """Return the text of a conversation, without its end; raise DataError if it is invalid."""
    text = "".join(conversation_parts(messages, place))
    if messages[-1].role != "assistant":
        raise DataError(f"{place}: it ends without an answer; the last message is the assistant's")
    return text.removesuffix(TURN)  # no question follows the last answer


def system_text(messages: Sequence[Message]) -> str:
    """Return the system message and an empty line, or nothing if there is no such message.

    This text stands before the first question of a conversation.
    """
    has_system = len(messages) > 0 and messages[0].role == "system"
    return f"{messages[0].text}\n\n" if has_system else ""


def conversation_parts(messages: Sequence[Message], place: str) -> Iterator[str]:
    """Yield each question with `ANSWER`, and each answer with `TURN`, of a conversation.

    A system message is a part of the first question, see `system_text`.

    Raises:
        DataError: the roles do not alternate, or a text contains a mark.
    """
    system = system_text(messages)
    expected = "user"
    for number, (role, text) in enumerate(messages):
        _check_marks(text, place)
        if role == "system" and number == 0:
            continue  # the first question includes it
        if role != expected:
            raise DataError(
                f"{place}: message {number + 1} is the {role}'s, expected the {expected}'s"
            )
        if role == "user":
            yield system + text + ANSWER
            system = ""  # only the first question begins with it
            expected = "assistant"
        else:
            yield text + TURN
            expected = "user"


def _check_marks(text: str, place: str) -> None:
    for mark, name in MARKS.items():
        if mark in text:
            raise DataError(
                f"{place}: the control character {mark!r} ({name}) marks where texts end; remove it"
            )
