"""What holds for every text: by hypothesis, which looks for the shortest that is wrong."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drills.frame import Tally
from gpt.config import strict_yaml
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.errors import DataError
from gpt.generation.text import TextStream
from tiny import CORPUS

Property = Callable[[Tally, int], int]
TEXT = st.text(max_size=40) | st.text(alphabet=sorted(set(CORPUS)), max_size=60) | st.sampled_from(CORPUS.split())
SYNTAX = st.lists(
    st.sampled_from([*":-[]{}#&*!|>%@`'\"\n\t ,?~", "a", "1", "e", ".", "\\x", "---", "  ", "<<"]), max_size=40
)
FEW = st.text(alphabet="abé", max_size=30)
TOKENIZERS: tuple[Tokenizer, ...] = (ByteTokenizer(), CharTokenizer(CORPUS), learn_bpe([CORPUS], 300))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def a_text_is_decoded_as_it_was_encoded(text: str, tokenizer: Tokenizer) -> None:
    """It is so at once and one id at a time, unless the text is refused."""
    try:
        ids = tokenizer.encode(text)
    except DataError:
        return
    assert tokenizer.decode(ids) == text
    assert tokenizer.count_chars(ids) == len(text)
    stream = tokenizer.stream()
    assert "".join(stream.feed(int(index)) for index in ids) + stream.flush() == text


def streamed_ids_are_the_text_of_all(ids: list[int], tokenizer: Tokenizer) -> None:
    """They are so even where they are of no text."""
    ids = [index % tokenizer.vocab_size for index in ids]
    stream = tokenizer.stream()
    assert "".join(stream.feed(index) for index in ids) + stream.flush() == tokenizer.decode(ids)


def the_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    """Nothing of a stop string is shown, and everything before it is."""
    stream, shown = TextStream(ByteTokenizer(), tuple(stop)), ""
    for index in text.encode():
        shown += stream.feed(index)
        if stream.stopped:
            break
    shown += stream.flush()
    ends = [begin + len(string) for string in stop if (begin := text.find(string)) >= 0]
    assert stream.stopped == bool(ends)
    assert not any(string in shown for string in stop)
    assert text.startswith(shown)
    if not ends:
        assert shown == text


def text_is_yaml_or_a_syntax_error(text: str) -> None:
    """It raises nothing else, as a file or as the value of an override."""
    for parse in (strict_yaml.parse, strict_yaml.parse_value):
        try:
            parse(text)
        except strict_yaml.YAMLSyntaxError:
            continue


def what_was_read_is_written_and_read_again(text: str) -> None:
    """It is the same then."""
    try:
        document = strict_yaml.parse(text)
    except strict_yaml.YAMLSyntaxError:
        return
    again = strict_yaml.parse(strict_yaml.dump(document.data))
    assert repr(again.data) == repr(document.data)  # a NaN is no equal of itself


def written_yaml_is_read_as_it_was(data: dict[str, Any]) -> None:
    """It is so whatever characters it has."""
    assert strict_yaml.parse(strict_yaml.dump(data)).data == data


def by_hypothesis(check: Callable[..., None], *strategies: Any) -> Property:
    """Return a function that checks a property so many times, notes a failure, and returns the count."""

    def look(tally: Tally, count: int) -> int:
        done = 0

        def counted(example: tuple[Any, ...]) -> None:
            nonlocal done
            done += 1
            check(*example)

        limits = settings(
            max_examples=count,
            deadline=5000,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        try:
            limits(given(st.tuples(*strategies))(counted))()
        except Exception as error:
            tally.check(False, f"{check.__name__}: {error!r}"[:1500])
            tally.count("tracebacks")
        return done

    return look


PROPERTIES: tuple[Property, ...] = (
    by_hypothesis(a_text_is_decoded_as_it_was_encoded, TEXT, st.sampled_from(TOKENIZERS)),
    by_hypothesis(
        streamed_ids_are_the_text_of_all, st.lists(st.integers(0, 299), max_size=40), st.sampled_from(TOKENIZERS)
    ),
    by_hypothesis(
        the_text_ends_before_the_first_stop_string,
        FEW,
        st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4),
    ),
    by_hypothesis(text_is_yaml_or_a_syntax_error, TEXT | SYNTAX.map("".join)),
    by_hypothesis(what_was_read_is_written_and_read_again, SYNTAX.map("".join)),
    by_hypothesis(written_yaml_is_read_as_it_was, st.dictionaries(st.text(max_size=8), PLAIN, max_size=4)),
)
