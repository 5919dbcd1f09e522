"""Questions and answers: how they are read, and what is refused with its file and line."""

import json
from pathlib import Path

import pytest

from gpt.data.corpus_text import CorpusText
from gpt.data.pairs import ANSWER, TURN, looks_like_pairs, read_pairs
from gpt.system.errors import DataError


def read(folder: Path, name: str, text: str) -> list[str]:
    file = folder / name
    file.write_text(text, encoding="utf-8", newline="")
    return read_pairs(CorpusText([file]))


def chat(*messages: tuple[str, str]) -> str:
    entries = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"messages": entries})


def test_prompt_and_answer_are_a_pair(tmp_path: Path) -> None:
    line = '{"prompt": "1+2", "answer": "3"}'
    assert read(tmp_path, "a.jsonl", f"{line}\n\n{line}\n") == [f"1+2{ANSWER}3"] * 2


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ('{"question": "1+2", "answer": "3", "id": 7}', "1+2"),
        ('{"prompt": "1+2", "completion": "3"}', "1+2"),
        ('{"prompt": "1+2", "response": "3"}', "1+2"),
        ('{"instruction": "1+2", "input": "", "output": "3"}', "1+2"),
        ('{"instruction": "Add.", "input": "1 and 2", "output": "3"}', "Add.\n1 and 2"),
    ],
)
def test_pair_may_have_the_keys_of_usual_datasets(tmp_path: Path, line: str, question: str) -> None:
    assert read(tmp_path, "a.jsonl", line) == [f"{question}{ANSWER}3"]
    assert looks_like_pairs(CorpusText([tmp_path / "a.jsonl"]))


def test_messages_are_a_conversation(tmp_path: Path) -> None:
    line = chat(
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Bye"),
        ("assistant", "Ciao"),
    )
    expected = f"Be brief.\n\nHi{ANSWER}Hello{TURN}Bye{ANSWER}Ciao"
    assert read(tmp_path, "a.jsonl", line) == [expected]


@pytest.mark.parametrize("header", ["", "prompt\tanswer\n", "Question\tAnswer\n"])
def test_table_has_a_question_and_its_answer_in_a_line(tmp_path: Path, header: str) -> None:
    assert read(tmp_path, "a.tsv", f"{header}1+2\t3\n4\t5\n") == [f"1+2{ANSWER}3", f"4{ANSWER}5"]


def test_columns_of_a_spreadsheet_may_have_commas_and_lines(tmp_path: Path) -> None:
    text = 'question,answer\n"Who, when?","I, now\nand ""here"""\n\n1+2,3\n'
    expected = [f'Who, when?{ANSWER}I, now\nand "here"', f"1+2{ANSWER}3"]
    assert read(tmp_path, "a.csv", text) == expected


def test_line_ends_and_marks_of_other_systems_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a.tsv", "\ufeffa\tb\r\nc\td\r\n") == [f"a{ANSWER}b", f"c{ANSWER}d"]


PAIR = '{"prompt": "1+2", "answer": "3"}\n'


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.jsonl", PAIR + '{"prompt": "1"}', "line 2: a prompt without an answer"),
        ("a.jsonl", PAIR + '{"prompt": "1", "answer": 2}', "line 2: prompt and answer must be"),
        ("a.jsonl", PAIR + '{"prompt": 1, "answer": "2"}', "line 2: prompt and answer must be"),
        ("a.jsonl", PAIR + "[" * 200_000, "line 2: not JSON"),
        ("a.jsonl", PAIR + '{"prompt": ', "line 2: not JSON"),
        ("a.jsonl", PAIR + '{"question": "1", "answer": "2"}', "line 2: another form"),
        ("a.jsonl", '{"question": 1, "answer": "2"}', "question and answer must be texts"),
        ("a.jsonl", PAIR + '["1", "2"]', r'line 2: \["1", "2"\]; expected'),
        ("a.jsonl", PAIR + chat(("user", "a"), ("assistant", "b")), "line 2: another form"),
        ("a.jsonl", chat(("user", "a")), "line 1: it ends without an answer"),
        ("a.jsonl", chat(("assistant", "a")), "message 1 is the assistant's, expected the user's"),
        ("a.jsonl", chat(("user", "a"), ("user", "b")), "message 2 is the user's, expected the"),
        ("a.jsonl", chat(("robot", "a")), "a message needs a role"),
        ("a.jsonl", '{"prompt": "a\\u001f", "answer": "b"}', r"control character '\\x1f'"),
        ("a.tsv", "a\tb\nc\n", "line 2: 1 columns, expected a question and its answer"),
        ("a.tsv", "a\tb\tc\n", "line 1: 3 columns"),
        ("a.csv", 'a,"b\nc"\nd\n', "line 3: 1 columns, expected a question and its answer"),
        ("a.csv", 'a,b\n"c,d\n', "line 2: not comma-separated values"),
    ],
)
def test_line_that_is_no_pair_is_refused(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        read(tmp_path, name, text)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", PAIR, True),
        ("a.jsonl", "\n" + chat(("user", "a"), ("assistant", "b")), True),
        ("a.jsonl", '{"prompt": "1"}', True),  # is refused then, with its line
        ("a.jsonl", '{"text": "running text"}\n', False),
        ("a.jsonl", '{"question": "with several choices"}\n', False),
        ("a.jsonl", "[" * 200_000, False),
        ("a.jsonl", "no JSON\n", False),
        ("a.jsonl", "", False),
        ("a.tsv", "a\tb\n", True),
        ("a.tsv", "a\tb\tc\n", False),
        ("a.csv", '"Question","Answer"\na,b\n', True),
        ("a.csv", "Now is the winter of our discontent,\n", False),
        ("a.txt", PAIR, False),
    ],
)
def test_file_of_pairs_is_known_by_its_name_and_first_line(
    tmp_path: Path, name: str, text: str, expected: bool
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert looks_like_pairs(CorpusText([file])) == expected
