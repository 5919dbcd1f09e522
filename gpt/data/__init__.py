"""From a corpus to batches of token ids."""

from gpt.data.batches import BatchSampler
from gpt.data.dataset import Dataset, open_dataset, prepare
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer

__all__ = ["BatchSampler", "ByteTokenizer", "CharTokenizer", "Dataset", "Tokenizer", "open_dataset", "prepare"]
