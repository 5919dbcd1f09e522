"""The tokenizer of a corpus: built from it, or that of a model with the characters that it lacks."""

from gpt.config import DataConfig
from gpt.corpora.corpus_text import CorpusText
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import MAX_LISTED, ByteTokenizer, CharTokenizer, Tokenizer
from gpt.errors import DataError


def build_tokenizer(corpus: CorpusText, config: DataConfig) -> Tokenizer:
    if config.tokenizer == "byte":
        return ByteTokenizer()
    if config.tokenizer == "bpe":
        return learn_bpe(corpus.sample(), config.bpe_vocab_size)
    chars = corpus.characters()
    if len(chars) < 2:
        raise DataError(f"{corpus.name} has {len(chars)} distinct characters; there is nothing to learn from it")
    return CharTokenizer(chars)


def extend_tokenizer(base: Tokenizer, corpus: CorpusText, add_characters: bool) -> Tokenizer:
    """Return a tokenizer with which a corpus can be encoded: the one given, or that with more characters.

    Raises:
        DataError: characters are missing and must not be added.
    """
    if not isinstance(base, CharTokenizer):
        return base
    missing = [char for char in corpus.characters() if char not in base.stoi]
    if missing and not add_characters:
        listed = ", ".join(map(repr, missing[:MAX_LISTED]))
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        raise DataError(
            f"{corpus.name} has characters outside the vocabulary of {base.vocab_size} that the model begins with: "
            f"{listed}{more}; set train.init_new_characters=add to add them, or remove them from the text"
        )
    return CharTokenizer([*base.itos, *missing]) if missing else base
