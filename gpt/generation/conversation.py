"""The prompt of a conversation, as models that were trained on questions and answers read it."""

from collections.abc import Sequence

from gpt.config import SamplingParams
from gpt.data.pairs import Message, conversation_parts
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.system.errors import GenerationError

ANSWER_FRACTION = 1 / 4
"""Part of the window that stays free for the answer where the history would fill it."""


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
        raise GenerationError("the last message must be the user's, since it is the one to answer")
    read = [Message(role, convert_newlines(text)) for role, text in messages]
    # A part is a message with the mark after it; the system's text is part of the first question.
    texts = conversation_parts(read, "the messages")
    parts = [tokenizer.encode(text).tolist() for text in texts]
    begin = [] if params.begin_id is None else [params.begin_id]
    room = block_size - max(1, int(block_size * ANSWER_FRACTION))
    while len(parts) > 1 and len(begin) + sum(map(len, parts)) > room:
        parts = parts[2:]  # a question and its answer
    ids = [*begin, *(index for part in parts for index in part)]
    # A last question that leaves less room than that is answered all the same.
    if len(ids) > block_size:
        raise GenerationError(
            f"the question has {len(ids):,} tokens, more than the window of {block_size:,}"
        )
    return ids
