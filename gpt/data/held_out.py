"""Validation and test texts in files of their own, encoded by the tokenizer of the corpus."""

from collections.abc import Sequence
from pathlib import Path

from gpt.config import DataConfig
from gpt.data.corpus_text import SEPARATOR, CorpusText
from gpt.data.items import ItemCorpus
from gpt.data.locating import held_out_files
from gpt.data.pairs import pairs_with_places
from gpt.data.tokenizers import CharTokenizer, Tokenizer
from gpt.system.errors import DataError, UnknownCharactersError
from gpt.system.progress import Report

REMEDY = (
    "leave it out, add a text that has it to the corpus, or set data.unknown to replace or drop"
)
"""What to do about a character that the corpus lacks."""


def find_held_out(
    config: DataConfig, files: Sequence[Path], report: Report
) -> dict[str, CorpusText]:
    """Return the texts of `data.val_path` and `data.test_path`, by the name of their split.

    Args:
        files: the files of the corpus.

    Raises:
        DataError: a path names no files, or one of its files is in the corpus too. The loss of
            such a file would be that of a text on which the model was trained.
    """
    training_files = {file.resolve() for file in files}
    texts: dict[str, CorpusText] = {}
    for split, split_files in held_out_files(config, report).items():
        for file in split_files:
            if file.resolve() in training_files:
                raise DataError(
                    f"{file} is in the corpus and in data.{split}_path; move it out of one of them"
                )
        if config.items == "none":
            texts[split] = CorpusText(split_files)
        else:
            texts[split] = ItemCorpus(split_files, config, is_held_out=True)
    return texts


def held_out_tokenizer(tokenizer: Tokenizer, config: DataConfig, text: CorpusText) -> Tokenizer:
    """Return the tokenizer that encodes a held-out text as `data.unknown` says.

    Raises:
        UnknownCharactersError: the text has a character that the tokenizer lacks, and
            `data.unknown` is error.
    """
    if not isinstance(tokenizer, CharTokenizer):
        # Bytes and byte pairs encode any text, and unknown words are encoded as `<unk>`.
        return tokenizer
    if config.unknown == "error":
        # Encoding would raise too, but could not name the file and the line.
        if config.items == "pairs":
            _require_known_pairs(text, tokenizer)
        else:
            _require_known_characters(text, tokenizer)
    return CharTokenizer(tokenizer.itos, config.unknown)


def _require_known_pairs(pairs: CorpusText, tokenizer: CharTokenizer) -> None:
    """Raise UnknownCharactersError with the place of the first pair with an unknown character.

    Only the texts of the pairs are searched: the brackets and quotes of JSON are not encoded.
    """
    for place, text in pairs_with_places(pairs):
        position = tokenizer.find_unknown(text)
        if position is not None:
            raise _not_in_corpus(place, text[position])


def _require_known_characters(text: CorpusText, tokenizer: CharTokenizer) -> None:
    """Raise UnknownCharactersError with the place of the first character that has no id."""
    # The separator between files is encoded too, but has no place in a file.
    if len(text.files) > 1 and tokenizer.find_unknown(SEPARATOR) is not None:
        raise UnknownCharactersError(
            f"{text.name}: an empty line is read between files, and the corpus has no line end; "
            "give one file, or set data.unknown to drop"
        )
    for file in text.files:
        line = 1
        column = 1
        for piece in CorpusText([file]).pieces():
            position = tokenizer.find_unknown(piece)
            # Count the lines and columns before the character, or those of the whole piece if
            # `position` is None.
            before = piece[:position]
            if "\n" in before:
                line += before.count("\n")
                column = 1
            column += len(before.rpartition("\n")[2])
            if position is not None:
                place = f"{file}, line {line:,}, column {column:,}"
                raise _not_in_corpus(place, piece[position])


def _not_in_corpus(place: str, character: str) -> UnknownCharactersError:
    return UnknownCharactersError(
        f"{place}: {character!r} is not in the corpus, whose characters are the vocabulary; "
        f"{REMEDY}"
    )
