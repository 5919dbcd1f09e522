"""The prompt of a conversation, as models that were trained on questions and answers read it."""

from collections.abc import Sequence

from gpt.config import SamplingParams
from gpt.data.items import encode_marked
from gpt.data.pairs import Message, conversation_parts, system_text
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.system.errors import GenerationError

ANSWER_FRACTION = 1 / 4
"""Part of the window that stays free for the answer where the history would fill it."""


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message], params: SamplingParams, block_size: int
) -> list[int]:
    """Return the ids of a conversation that the model is to answer.

    Questions are left out with their answers, the oldest first, until the rest fits into the window
    with room for an answer, or only the last question is left. A system message stays, before the
    oldest question that is left.

    Raises:
        DataError: the roles do not alternate, or a text has characters outside the vocabulary.
        GenerationError: the conversation does not end with a question, or the last question is too
            long, alone or with the system message.
    """
    if not messages or messages[-1].role != "user":
        raise GenerationError("the last message must be the user's, since it is the one to answer")
    normalized = [Message(role, convert_newlines(text)) for role, text in messages]
    # A turn is a message with the mark after it. The first question begins with the system message,
    # which is removed from it, since another question may become the first.
    system = system_text(normalized)
    turns = list(conversation_parts(normalized, "the messages"))
    turns[0] = turns[0].removeprefix(system)

    begin_ids = [] if params.begin_id is None else [params.begin_id]
    num_before = len(begin_ids) + len(encode_marked(tokenizer, system))
    lengths = [len(encode_marked(tokenizer, turn)) for turn in turns]
    room_for_answer = max(1, int(block_size * ANSWER_FRACTION))  # at least one token
    room = block_size - room_for_answer
    total = num_before + sum(lengths)
    oldest = 0
    while oldest < len(turns) - 1 and total > room:
        total -= lengths[oldest] + lengths[oldest + 1]  # a question and its answer
        oldest += 2

    # The system message and the turns are encoded as one text, since a byte pair may begin in the
    # message and end in the question.
    ids = begin_ids + encode_marked(tokenizer, system + "".join(turns[oldest:]))
    # The last question may take the room that was kept free for its answer.
    if len(ids) <= block_size:
        return ids
    if num_before >= block_size:
        raise GenerationError(
            f"the message of the system has {num_before:,} tokens, and leaves no room for a "
            f"question in the window of {block_size:,}; shorten it"
        )
    with_system = " with the message of the system" if system else ""
    raise GenerationError(
        f"the question{with_system} has {len(ids):,} tokens, more than the window of {block_size:,}"
    )
