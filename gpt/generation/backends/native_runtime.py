"""A model prepared for decoding by the C++ engine."""

from functools import partial

from gpt.config import SamplingParams
from gpt.environment import Settings
from gpt.generation.backends.native import NativeBackend, prepare
from gpt.generation.backends.selection import DecodeOptions, Runtime
from gpt.generation.runners.native import NativeRunner
from gpt.generation.speculative import MAX_DRAFTS
from gpt.kernels.decoding import engine
from gpt.model import GPT
from gpt.progress import Report, print_line, silent


class NativeRuntime(Runtime):
    """Decodes by the C++ engine, with a copy of the model's weights; see `build_runtime` for the arguments.

    Raises:
        DeviceError: the engine is not available here, or not for this model.
    """

    def __init__(
        self,
        model: GPT,
        options: DecodeOptions,
        settings: Settings,
        report: Report | None,
        speculate: bool = False,
    ) -> None:
        super().__init__(model, "native", options)
        self._speculate, self._report = speculate, report or silent
        self._prepared = prepare(model, settings, report or print_line)
        self._make_engine = partial(
            engine.Engine, self._prepared.library, self._prepared.weights, kv_dtype=options.kv_dtype
        )

    def backend(self, params: SamplingParams) -> NativeBackend:
        return NativeBackend(self._make_engine, self.model, params.slide_chunk, self._options.prefill_chunk)

    def _batch_runner(self, sequences: int, params: SamplingParams) -> NativeRunner:
        made = self._make_engine(sequences, tokens_per_sequence=1 + MAX_DRAFTS * self._speculate)
        return NativeRunner(
            made, self._prepared, self._report, pass_tokens=self._options.prefill_chunk, speculate=self._speculate
        )

    def _paged_runner(self, sequences: int, prefill_chunk: int, blocks: int) -> NativeRunner:
        tokens = max(1 + -(-prefill_chunk // sequences), 1 + MAX_DRAFTS * self._speculate)
        made = self._make_engine(sequences, tokens_per_sequence=tokens, blocks=blocks)
        return NativeRunner(made, self._prepared, self._report, prefill_chunk, speculate=self._speculate)
