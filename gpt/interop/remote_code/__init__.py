"""The code in a folder for transformers whose model none of its architectures computes; it imports nothing of gpt."""
