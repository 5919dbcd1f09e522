"""The tokenizer of a corpus: built from it, or that of a model with the characters that it lacks."""

from gpt.config import DataConfig
from gpt.corpora.corpus_text import CorpusText
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.system.errors import DataError


def build_tokenizer(corpus: CorpusText, config: DataConfig) -> Tokenizer:
    if config.tokenizer == "byte":
        return ByteTokenizer()
    if config.tokenizer == "bpe":
        return learn_bpe(corpus.sample(), config.bpe_vocab_size)
    chars = corpus.characters()
    if len(chars) < 2:
        raise DataError(f"{corpus.name} has {len(chars)} distinct characters; there is nothing to learn from it")
    return CharTokenizer(chars)


def extend_tokenizer(base: Tokenizer, corpus: CorpusText) -> Tokenizer:
    """Return a tokenizer with which a corpus can be encoded: the one given, or that with more characters."""
    if not isinstance(base, CharTokenizer):
        return base
    missing = [char for char in corpus.characters() if char not in base.stoi]
    return CharTokenizer([*base.itos, *missing]) if missing else base
