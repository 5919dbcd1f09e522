"""The prompt of a conversation, as models that were trained on questions and answers read it."""

from collections.abc import Sequence

from gpt.config import SamplingParams
from gpt.data.pairs import Message, conversation_parts
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.system.errors import GenerationError

SHARE_OF_ANSWER = 4
"""The window is kept free for the answer by 1 / this, if the history would fill it."""


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message], params: SamplingParams, block_size: int
) -> list[int]:
    """Return the ids of a conversation that the model is to answer.

    The oldest question and its answer are left out, and the next ones, until the rest fits into
    the window with room for an answer, or only the last question is left.

    Raises:
        DataError: the roles do not alternate, or a text has characters outside the vocabulary.
        GenerationError: it does not end with a question, or the last question alone is too long.
    """
    if not messages or messages[-1].role != "user":
        raise GenerationError("the last message is to be the user's: it is the one to answer")
    read = [Message(role, convert_newlines(text)) for role, text in messages]
    parts = [tokenizer.encode(part).tolist() for part in conversation_parts(read, "the messages")]
    begin = [] if params.begin_id is None else [params.begin_id]
    room = block_size - max(1, block_size // SHARE_OF_ANSWER)
    while len(parts) > 1 and len(begin) + sum(map(len, parts)) > room:
        parts = parts[2:]  # a question and its answer
    ids = [*begin, *(index for part in parts for index in part)]
    if len(ids) > block_size:
        raise GenerationError(
            f"the question has {len(ids):,} tokens, more than the window of {block_size:,}"
        )
    return ids
