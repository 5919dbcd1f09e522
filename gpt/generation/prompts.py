"""From a prompt to the token ids that decoding starts from."""

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.errors import DataError, GenerationError

FIRST_TEXT = "\n"
"""Where an empty prompt starts: after a line end, or, where the vocabulary has none, after id 0."""


def encode_prompt(tokenizer: Tokenizer, prompt: str, params: SamplingParams, block_size: int) -> list[int]:
    """Return the token ids of a prompt.

    Raises:
        DataError: characters outside the vocabulary.
        GenerationError: the prompt is empty, or longer than the window, and `params` refuses that.
    """
    ids = [int(index) for index in tokenizer.encode(prompt)]
    if not ids:
        return _first_ids(tokenizer, params)
    if len(ids) > block_size:
        if params.long_prompt == "refuse":
            raise GenerationError(
                f"the prompt has {len(ids)} tokens, more than the window of {block_size}; "
                "shorten it, or go on from its end with long_prompt=crop (--crop-prompt)"
            )
        ids = ids[-block_size:]
    return ids


def _first_ids(tokenizer: Tokenizer, params: SamplingParams) -> list[int]:
    if params.empty_prompt == "refuse":
        raise GenerationError("the prompt is empty, and empty_prompt is refuse")
    try:
        ids = tokenizer.encode(FIRST_TEXT)
    except DataError:
        return [0]
    return [int(ids[0])] if tokenizer.decode(ids) == FIRST_TEXT else [0]  # it may have been dropped or replaced
