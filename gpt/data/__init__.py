"""From a corpus to batches of token ids; samplers, which need torch, are in `batches` and `sampling_order`."""

from gpt.data.dataset import Dataset, open_dataset
from gpt.data.preparation import prepare
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer

__all__ = ["ByteTokenizer", "CharTokenizer", "Dataset", "Tokenizer", "open_dataset", "prepare"]
