"""A stage that is known for the length of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from glmforge.config.schema import RunConfig, declare_stage
from glmforge.config.stage import STAGES, StageDeclaration


@contextmanager
def declared(stage: StageDeclaration) -> Iterator[None]:
    """Declare `stage` as a program of a user would, and take it back at the end."""
    fields = dict(RunConfig.__pydantic_fields__)
    declare_stage(stage)
    try:
        yield
    finally:
        del STAGES[stage.name]
        RunConfig.__pydantic_fields__.clear()
        RunConfig.__pydantic_fields__.update(fields)
        RunConfig.model_rebuild(force=True)
