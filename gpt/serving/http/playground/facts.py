"""`/api/models/{name}`: what a reader of the page is told about a model, and what its form starts with."""

from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from gpt.accounting.parameters import count_parameters
from gpt.config.filter_fields import with_filter_fields
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.serving.http.answers import Answers
from gpt.serving.http.information import Responses
from gpt.serving.http.models import Models

Kind = Literal["character", "byte", "token"]
KINDS: dict[type[Tokenizer], Kind] = {CharTokenizer: "character", ByteTokenizer: "byte"}


@with_filter_fields(after="temperature")
class SampleFacts(BaseModel):
    """How the model's configuration samples."""

    temperature: float


class ModelFacts(BaseModel):
    """What a model is."""

    model: str
    parameters: int
    n_layer: int
    n_head: int
    block_size: int = Field(description="Tokens that it sees at a time.")
    vocab_size: int
    token: Kind = Field(description="What a token is.")
    sample: SampleFacts


def add_facts(app: FastAPI, models: Models, answers: Answers, errors: Responses) -> None:
    """Add `GET /api/models/{name}`; see `add_playground` for the arguments."""

    async def describe(name: str) -> ModelFacts:
        """Describe a model, which is loaded for it."""
        answers.check()
        async with models.use(name) as served:
            loaded = served.loaded
            config, sample = loaded.model.config, loaded.config.sample
            return ModelFacts(
                model=name,
                parameters=count_parameters(config).total,
                n_layer=config.n_layer,
                n_head=config.n_head,
                block_size=config.block_size,
                vocab_size=loaded.tokenizer.vocab_size,
                token=KINDS.get(type(loaded.tokenizer), "token"),
                sample=SampleFacts.model_validate(sample, from_attributes=True),
            )

    app.add_api_route("/api/models/{name:path}", describe, responses=errors)
