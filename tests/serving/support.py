"""What the tests of serving share: a core that is driven step by step, and what it should answer."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation import Piece, SampledToken
from gpt.generation.backends import Window
from gpt.kernels.decoding.layout import BLOCK
from gpt.serving.engine_core import EngineCore
from gpt.serving.model_runner import Runner, Sampled
from gpt.serving.request import Request
from gpt.serving.sequence import Chunk

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids
BLOCK_SIZE = 200
WINDOW_BLOCKS = -(-BLOCK_SIZE // BLOCK)


class MemoryRunner:
    """Stores tokens where keys and values would lie, and samples from all that a sequence finds in its blocks.

    Attributes:
        computed: tokens of each step.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.computed: list[int] = []
        self._memory = [[-1] * BLOCK for _ in range(blocks)]

    def run(self, chunks: Items[Chunk]) -> Sampled:
        self.computed.append(sum(len(chunk.tokens) for chunk in chunks))
        places: list[tuple[int, int]] = []
        for sequence, tokens, _ in chunks:
            for position, token in enumerate(tokens, start=sequence.stored):
                place = sequence.table.blocks[position // BLOCK], position % BLOCK
                self._memory[place[0]][place[1]] = token
                places.append(place)
        assert len(set(places)) == len(places)
        sampled: Sampled = {}
        for sequence, tokens, samples in chunks:
            length = sequence.stored + len(tokens)
            found = [self._memory[sequence.table.blocks[i // BLOCK]][i % BLOCK] for i in range(length)]
            assert found == sequence.window()[:length]
            if samples:
                sampled[sequence] = SampledToken(token_after(found, sequence.random.peek(1)[0]))
        return sampled


def token_after(window: Items[int], uniform: float) -> int:
    """What the model in memory says next: anything that depends on every token and on the number."""
    return hash((*window, uniform)) % 23


def expected_tokens(prompt: Items[int], params: SamplingParams, uniforms: Items[float]) -> list[int]:
    """The tokens of a sequence that is alone."""
    tokens, window = list(prompt), Window.build(BLOCK_SIZE, params.slide_chunk)
    for uniform in uniforms:
        tokens.append(token_after(window.of(tokens), uniform))
    return tokens[len(prompt) :]


@dataclass
class Answer:
    """The pieces of a request that have come."""

    request: Request
    pieces: list[Piece] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[SampledToken]:
        return [piece.token for piece in self.pieces if piece.token is not None]

    @property
    def finish(self) -> str | None:
        return self.pieces[-1].finish if self.pieces else None


class Drive:
    """A core, and the answers to all requests that it was given."""

    def __init__(
        self, runner: Runner, max_sequences: int = 4, prefill_chunk: int = 32, block_size: int = BLOCK_SIZE
    ) -> None:
        self.core = EngineCore(runner, LETTERS, block_size, max_sequences, prefill_chunk)
        self.answers: dict[Request, Answer] = {}

    def add(self, prompt: str, **params: object) -> Answer:
        sampling = SamplingParams.model_validate(params)
        request = Request(prompt, LETTERS.encode(prompt).tolist(), sampling, lambda pieces: None)
        self.answers[request] = Answer(request)
        self._note(self.core.add(request))
        return self.answers[request]

    def cancel(self, answer: Answer) -> None:
        self._note(self.core.end(answer.request, "cancelled"))

    def step(self) -> None:
        self._note(self.core.step())

    def finish(self) -> None:
        """Steps until all requests have ended."""
        for _ in range(100_000):
            if not self.core.requests:
                break
            self.step()
        stats = self.core.stats()
        assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
        assert all(answer.finish for answer in self.answers.values())

    def _note(self, delivered: list[tuple[Request, list[Piece]]]) -> None:
        for request, pieces in delivered:
            assert self.answers[request].finish is None, "pieces after the last one"
            self.answers[request].pieces += pieces
