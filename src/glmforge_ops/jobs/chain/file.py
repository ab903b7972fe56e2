"""A chain's file: stages that follow each other, each a training run or a command.

    name: life
    launch: {launcher: slurm, partition: train}    # options of every stage
    stages:
      corpus:
        command: glmforge data run corpus.yaml
        outputs: {shards: data/web}
        launch: {nodes: 1}                         # laid over the common ones
      pretrain:
        needs: [corpus]
        config: pretrain.yaml
        overrides: {data.sources.0.path: "${corpus.outputs.shards}"}
      sft:
        needs: [pretrain]
        config: sft.yaml
        overrides: ["init_from=${pretrain.run}"]
      evaluate:
        needs: [sft]
        command: glmforge evaluate needles ${sft.run} --length 4096 --out ${evaluate.job}/needles.jsonl

`${STAGE.run}` is the directory of a training stage's run, `${STAGE.job}` that of its job, `${STAGE.outputs.NAME}` what
a stage says it writes. A stage may name itself and what it needs, be it through another stage: nothing else is sure to
be there when it starts. `$${` is a plain `${`.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from glmforge.config.explain import suggest
from glmforge.config.launch import JobName
from glmforge.config.model import Strict, refuse
from glmforge.config.secrets import HIDDEN, is_secret
from glmforge.errors import ConfigError
from glmforge.files import shown

MAX_STAGES = 100

StageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
OutputName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]

_REFERENCE = re.compile(r"(\$)?\$\{([^}]*)\}?")


class StageFile(Strict):
    """One stage."""

    needs: list[StageName] = Field(default=[], description="stages that must have finished before")
    config: str | None = Field(default=None, description="of a training run: a file, or a packaged run")
    overrides: list[str] | dict[str, Any] = Field(default=[], description="of config: key=value each, or a mapping")
    command: str | list[str] | None = Field(default=None, description="of any other stage: what its ranks run")
    outputs: dict[OutputName, str] = Field(default={}, description="files or directories that it writes, by name")
    launch: dict[str, Any] = Field(default={}, description="options of this stage, laid over the chain's")

    @property
    def words(self) -> list[str]:
        """Of the command."""
        return shlex.split(self.command) if isinstance(self.command, str) else list(self.command or [])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.config is None) == (self.command is None):
            refuse("config", "a stage has either a config (a training run) or a command, and one of them only")
        if self.config is None and self.overrides:
            refuse("overrides", "change a config, and this stage has a command; leave them out")
        if isinstance(self.command, str):
            try:
                shlex.split(self.command)
            except ValueError as error:
                refuse("command", f"cannot be split into words ({error}); give a list of words")
        if self.command is not None and not any(self.words):
            refuse("command", "is empty; give the program and its arguments")
        return self


class ChainFile(Strict):
    """All stages, by name."""

    name: JobName
    launch: dict[str, Any] = Field(default={}, description="options of every stage, as of 'glmforge launch'")
    stages: dict[StageName, StageFile] = Field(min_length=1, max_length=MAX_STAGES)

    @model_validator(mode="after")
    def _check_needs(self) -> Self:
        for name, stage in self.stages.items():
            for need in stage.needs:
                if need not in self.stages:
                    refuse(f"stages.{name}.needs", f"there is no stage '{need}'; {suggest(need, self.stages)}")
        try:
            self.in_order()
        except CycleError as error:
            refuse("stages", f"need each other in a circle: {' -> '.join(error.args[1])}; take one of these needs out")
        return self

    def in_order(self) -> list[str]:
        """Names of the stages, each behind what it needs, else as they stand in the file."""
        sorter = TopologicalSorter({name: stage.needs for name, stage in self.stages.items()})
        sorter.prepare()
        order: list[str] = []
        while sorter.is_active():
            for name in sorted(sorter.get_ready(), key=list(self.stages).index):
                order.append(name)
                sorter.done(name)
        return order

    def all_needs(self, name: str) -> set[str]:
        """What a stage needs, be it through other stages."""
        found, left = set[str](), list(self.stages[name].needs)
        while left:
            need = left.pop()
            if need not in found:
                found.add(need)
                left += self.stages[need].needs
        return found


def without_secrets(chain: ChainFile) -> ChainFile:
    """With `***` for their values."""

    def hidden(launch: dict[str, Any]) -> dict[str, Any]:
        env = launch.get("env")
        if not isinstance(env, dict):
            return launch
        return launch | {"env": {name: HIDDEN if is_secret(name, str(value)) else value for name, value in env.items()}}

    stages = {name: stage.model_copy(update={"launch": hidden(stage.launch)}) for name, stage in chain.stages.items()}
    return chain.model_copy(update={"launch": hidden(chain.launch), "stages": stages})


def substituted(text: str, place: str, value_of: Callable[[str, str], str]) -> str:
    """`text` with every `${...}` replaced. `value_of` is given what stands in the braces, and the place for errors."""

    def replace(found: re.Match[str]) -> str:
        escaped, inner = found.groups()
        if not found.group(0).endswith("}"):
            raise ConfigError(f"{place}: '{shown(text)}': '${{' has no '}}'; write '$${{' for a plain one")
        return found.group(0)[1:] if escaped else value_of(inner.strip(), place)

    return _REFERENCE.sub(replace, text)


def look_up(
    reference: str, place: str, allowed: Mapping[str, Mapping[str, str]], stage: str, all_stages: Sequence[str]
) -> str:
    """What `STAGE.run`, `STAGE.job` or `STAGE.outputs.NAME` stands for.

    Args:
        allowed: of the stage itself, and of those that it needs: the values by what comes after the stage's name.
        stage: that the reference stands in.
    """
    name, _, what = reference.partition(".")
    written = shown(f"${{{reference}}}")
    if name not in all_stages:
        raise ConfigError(f"{place}: {written}: there is no stage '{shown(name)}'; {suggest(name, all_stages)}")
    if name not in allowed:
        raise ConfigError(f"{place}: {written}: {stage} does not need {name}; add it to needs, so that it comes first")
    values = allowed[name]
    if what not in values:
        known = ", ".join(f"${{{name}.{known}}}" for known in values)
        raise ConfigError(f"{place}: {written}: there is no such thing; there are {known}")
    return values[what]
