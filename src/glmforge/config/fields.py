"""Field types and checks that several sections share."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainValidator
from pydantic_core import PydanticKnownError

from glmforge.config.model import refuse

# YAML has neither paths nor pairs, so these two take a string and a list.
YamlPath = Annotated[Path, Field(strict=False)]
YamlPair = Annotated[tuple[float, float], Field(strict=False)]


def one_of(registry: Collection[str]) -> PlainValidator:
    """For `Annotated[str, one_of(registry)]`: one of the names that the registry has by then.

    The error is pydantic's own for a `Literal` of them.
    """

    def check(value: object) -> str:
        if isinstance(value, str) and value in registry:
            return value
        *names, last = (f"'{name}'" for name in registry)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})

    return PlainValidator(check)


def refuse_duplicates(field: str, names: list[str]) -> None:
    """Reject a list in which a name stands twice."""
    for name, count in Counter(names).items():
        if count > 1:
            refuse(field, f"the name '{name}' is used {count} times; give each its own")
