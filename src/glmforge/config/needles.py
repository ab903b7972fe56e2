"""`observe.needles`: tests of retrieval from long contexts, and which of them a run takes at its evaluations."""

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from glmforge.config.model import Strict, refuse

NeedleTask = Literal["single", "multi_key", "multi_value", "multi_query", "variables"]
NeedleValues = Literal["numbers", "words", "uuids"]

MIN_LENGTH = 64
"""Tokens of a test, at least; how many it takes to hold the question follows from the tokenizer."""

MAX_LENGTH = 1 << 24
"""Tokens of a test, at most: a hundred times the longest context, and one test still fits the memory."""

MAX_NEEDLES = 32
MAX_EXAMPLES = 100_000


class NeedleTestsConfig(Strict):
    """The tests: one for each task, length, depth and example."""

    lengths: list[Annotated[int, Field(ge=MIN_LENGTH, le=MAX_LENGTH)]] = Field(
        min_length=1, description="tokens per test, including question and answer"
    )
    depths: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=[0.0, 0.25, 0.5, 0.75, 1.0],
        min_length=1,
        description="needle depth: 0 is the beginning of the text, 1 its end",
    )
    tasks: list[NeedleTask] = Field(
        default=["single"],
        min_length=1,
        description="tasks: one needle; one of several keys; all values of a key; values of several keys; variables "
        "assigned through other variables",
    )
    values: NeedleValues = Field(default="numbers", description="what to retrieve")
    num_needles: int = Field(default=4, ge=2, le=MAX_NEEDLES, description="of the tasks that have several")
    num_examples: int = Field(default=2, ge=1, le=MAX_EXAMPLES, description="tests per task, length and depth")
    seed: NonNegativeInt = Field(
        default=0, description="seed of the tests, sampling seed, sampling seed, the same at every evaluation"
    )

    @model_validator(mode="after")
    def _check_duplicates(self) -> Self:
        for field in ("lengths", "depths", "tasks"):
            twice = [value for value, count in Counter(getattr(self, field)).items() if count > 1]
            if twice:
                refuse(field, f"{twice[0]} is given more than once")
        return self


class NeedlesConfig(NeedleTestsConfig):
    """The tests that a run takes at its evaluations, those that are no longer than the phase's sequences."""

    haystack: str | None = Field(
        default=None, description="name in data.held_out whose text hides the needles; None: generated plain sentences"
    )
    answers: Literal["scored", "generated"] = Field(
        default="scored",
        description="scored: one forward pass over text and answer, correct if the answer's tokens are the most "
        "likely; generated: the generation engine writes the answer, with the whole KV cache of a text on each rank",
    )
