"""Published scores of GLM models, to stand beside ours with the settings that they were measured with."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Official(NamedTuple):
    """A published score; two are comparable only as far as their settings are."""

    model: str
    benchmark: str
    score: float
    settings: str
    source: str

    def __str__(self) -> str:
        return f"{self.benchmark}: published {self.score:.1%} of {self.model} ({self.settings}; {self.source})"


@cache
def official_scores() -> tuple[Official, ...]:
    """All that are known, in the order of `official.toml`."""
    content = tomllib.loads(files("glmforge.evaluate").joinpath("official.toml").read_text("utf-8"))
    return tuple(
        Official(group["model"], benchmark, score, content["settings"][how], content["sources"][group["source"]])
        for group in content["score"]
        for benchmark, (score, how) in group["scores"].items()
    )


def official_of(*benchmarks: str) -> list[Official]:
    """The published scores of some benchmarks, in their order."""
    return [one for name in dict.fromkeys(benchmarks) for one in official_scores() if one.benchmark == name]
