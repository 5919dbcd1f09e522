"""What holds for every text: by hypothesis, which looks for the shortest that is wrong."""

from collections.abc import Callable
from functools import wraps
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

NONE = list(HealthCheck)
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


def by_hypothesis(*strategies: Any) -> Callable[[Callable[..., None]], Property]:
    """Return a function that checks a property so many times, notes a failure, and returns the count."""

    def decorate(check: Callable[..., None]) -> Property:
        @wraps(check)
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

    return decorate


@by_hypothesis(TEXT, st.sampled_from(TOKENIZERS))
def a_text_is_decoded_as_it_was_encoded(text: str, tokenizer: Tokenizer) -> None:
    try:
        ids = tokenizer.encode(text)
    except DataError:
        return
    assert tokenizer.decode(ids) == text
    assert tokenizer.count_chars(ids) == len(text)
    stream = tokenizer.stream()
    assert "".join(stream.feed(int(index)) for index in ids) + stream.flush() == text


@by_hypothesis(st.lists(st.integers(0, 299), max_size=40), st.sampled_from(TOKENIZERS))
def streamed_ids_are_the_text_of_all(ids: list[int], tokenizer: Tokenizer) -> None:
    ids = [index % tokenizer.vocab_size for index in ids]
    stream = tokenizer.stream()
    assert "".join(stream.feed(index) for index in ids) + stream.flush() == tokenizer.decode(ids)


@by_hypothesis(
    st.text(alphabet="abé", max_size=30), st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4)
)
def the_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
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


@by_hypothesis(TEXT | SYNTAX.map("".join))
def text_is_yaml_or_a_syntax_error(text: str) -> None:
    for parse in (strict_yaml.parse, strict_yaml.parse_value):
        try:
            parse(text)
        except strict_yaml.YAMLSyntaxError:
            continue


@by_hypothesis(st.dictionaries(st.text(max_size=8), PLAIN, max_size=4))
def written_yaml_is_read_as_it_was(data: dict[str, Any]) -> None:
    assert strict_yaml.parse(strict_yaml.dump(data)).data == data


PROPERTIES: tuple[Property, ...] = (
    a_text_is_decoded_as_it_was_encoded,
    streamed_ids_are_the_text_of_all,
    the_text_ends_before_the_first_stop_string,
    text_is_yaml_or_a_syntax_error,
    written_yaml_is_read_as_it_was,
)
