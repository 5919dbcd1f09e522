"""The sets of questions and answers on which learning from answers is measured."""

from benchmarks.pairs import MAX_SUMMARY, SETS, docstrings


def test_pairs_have_a_question_and_an_answer_in_one_line_each() -> None:
    for name, make in SETS.items():
        pairs = list(make())
        assert len(pairs) > 1_000, name
        texts = [text for pair in pairs for text in pair]
        assert all(text.strip() == text != "" for text in texts), name
        assert not [text for text in texts if "\n" in text], name


def test_docstrings_are_first_lines_that_are_sentences() -> None:
    pairs = list(docstrings())
    assert ("what does operator.ior do", "Same as a |= b.") in pairs
    assert all(len(answer) <= MAX_SUMMARY and answer.endswith(".") for _, answer in pairs)
