"""Token files and their tokenizers; samplers, which need torch, are in `batches`."""

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer

__all__ = ["ByteTokenizer", "CharTokenizer", "Tokenizer"]
