"""A chain's file: stages that follow each other, each a training run or a command; checked before anything starts.

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
      evaluate:
        needs: [pretrain]
        command: glmforge evaluate needles ${pretrain.run} --length 4096 --out ${evaluate.job}/needles.jsonl

`${STAGE.run}` is the directory of a training stage's run, `${STAGE.job}` that of its job, `${STAGE.outputs.NAME}` what
a stage says it writes. A stage may name itself and what it needs, directly or through another stage: nothing else is
sure to be there when it starts. `$${` is a plain `${`.

A stage may begin from a run that an earlier one has yet to write. To check it, that run is replaced by a directory of
its configuration alone: all that a configuration takes from a run are its model and tokenizer.
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from glmforge.config.explain import suggest
from glmforge.config.launch import JobName, LaunchConfig, Launcher
from glmforge.config.load import dump_config, load_config, load_settings
from glmforge.config.model import Strict, refuse
from glmforge.config.schema import RunConfig
from glmforge.config.secrets import HIDDEN, take_secrets
from glmforge.config.tree import from_value, merge
from glmforge.errors import ConfigError, GlmforgeError
from glmforge.files import shown
from glmforge.observe.job_records import FileRecord, JobDirectory
from glmforge_ops.jobs.new_job import NewJob, command_job, run_job
from glmforge_ops.jobs.sweep.points import overrides_of

MAX_STAGES = 100
_MAX_NAME = 64

StageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
OutputName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]

_REFERENCE = re.compile(r"(\$)?\$\{([^}]*\}?)")


class StageFile(Strict):
    """One stage."""

    needs: list[StageName] = Field(default=[], description="stages that must have finished before")
    config: str | None = Field(default=None, description="of a training run: a file, or a packaged run")
    overrides: list[str] | dict[str, Any] = Field(default=[], description="of config: key=value each, or a mapping")
    command: str | None = Field(default=None, description="of any other stage: what its ranks run")
    outputs: dict[OutputName, str] = Field(default={}, description="files or directories that it writes, by name")
    launch: dict[str, Any] = Field(default={}, description="options of this stage, laid over the chain's")

    @property
    def words(self) -> list[str]:
        """Of the command."""
        return shlex.split(self.command or "")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            has_command = bool(self.words)
        except ValueError as error:
            refuse("command", f"cannot be split into words: {error}")
        if (self.config is None) != has_command:
            refuse("config", "give either a config (a training run) or a command")
        if self.config is None and self.overrides:
            refuse("overrides", "this stage has no config to change; leave them out")
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
        """Names of the stages, each behind what it needs."""
        return list(TopologicalSorter({name: stage.needs for name, stage in self.stages.items()}).static_order())


class StageRecord(FileRecord):
    """A stage of a chain."""

    name: str
    job: JobName
    needs: list[str]
    launcher: Launcher
    outputs: dict[str, Path] = Field(default={})


def read_stages(file: Path, root: Path, directory: Path) -> tuple[str, list[tuple[StageRecord, NewJob]]]:
    """The chain's name, and its stages with their jobs, in an order in which they can run.

    Args:
        root: where jobs lie.
        directory: in which all stages run, and that relative paths belong to.

    Raises `ConfigError`, which names the stage.
    """
    chain = load_settings(ChainFile, file)
    with tempfile.TemporaryDirectory(prefix="glmforge-chain-") as temporary:
        reader = _Reader(chain, root, directory, Path(temporary))
        stages = []
        for name in chain.in_order():
            try:
                stages.append(reader.stage(name, chain.stages[name]))
            except GlmforgeError as error:
                raise ConfigError(f"stage {name}: {error}") from None
    return chain.name, stages


@dataclass
class _Reader:
    """The stages that are read so far, and what later ones may name of them."""

    chain: ChainFile
    root: Path
    directory: Path
    temporary: Path
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    """Stage -> what stands for `STAGE.run` and so on, of the stage itself and all that it needs."""
    stand_ins: dict[str, str] = field(default_factory=dict)
    """`STAGE.run` -> the directory that replaces the run during the check."""
    secrets: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    """What a stage writes to -> the stage."""

    def stage(self, name: str, given: StageFile) -> tuple[StageRecord, NewJob]:
        job = JobDirectory(self.root / f"{self.chain.name}-{name}")
        if len(job.name) > _MAX_NAME:
            raise ConfigError(f"its job would be called {job.name}: more than {_MAX_NAME} characters")
        values = {key: value for need in given.needs for key, value in self.values[need].items()}
        values[f"{name}.job"] = str(job.root.absolute())
        outputs = {key: self.directory / _filled(text, values) for key, text in given.outputs.items()}
        values |= {f"{name}.outputs.{key}": str(path) for key, path in outputs.items()}
        launch = self._launch(given, values)
        places = list(outputs.values())
        if given.config is None:
            words = _filled(given.words, values)
            command = [sys.executable, "-m", "glmforge", *words[1:]] if words[0] == "glmforge" else words
            new = command_job(job, command, launch)
        else:
            config = self._config(given.config, given.overrides, values)
            new = run_job(job, config, launch)
            values[f"{name}.run"] = str(self.directory / config.output_dir)
            self._stand_in(name, config)
            own = (config.output_dir, config.checkpoint.dir, config.observe.tensorboard_dir)
            places += [self.directory / place for place in own if place is not None]
        for place in places:
            if (other := self.places.setdefault(place.absolute(), name)) != name:
                raise ConfigError(f"writes to {place}, as stage {other} does; give one of them another place")
        self.values[name] = values
        needs = list(dict.fromkeys(given.needs))
        record = StageRecord(name=name, job=job.name, needs=needs, launcher=launch.launcher, outputs=outputs)
        description = new.description.model_copy(update={"part_of": self.chain.name})
        return record, replace(new, description=description)

    def _launch(self, given: StageFile, values: Mapping[str, str]) -> LaunchConfig:
        levels = [_filled(options, values) for options in (self.chain.launch, given.launch)]
        for options in levels:
            if isinstance(env := options.get("env"), dict):
                options["env"] = take_secrets(env)
                for key, value in env.items():
                    if options["env"][key] == HIDDEN != value and self.secrets.setdefault(key, value) != value:
                        raise ConfigError(f"launch.env.{key}: other stages give this secret another value; rename it")
        launch = load_settings(LaunchConfig, merge(*(from_value(options, "launch") for options in levels)))
        if launch.array or launch.dependency:
            raise ConfigError("launch: array and dependency belong to the chain; name stages in needs")
        if not launch.supervise:
            raise ConfigError("launch: a stage that runs from here needs the supervisor; leave out supervise, starter")
        return launch

    def _config(
        self, source: str, overrides: Sequence[str] | Mapping[str, Any], values: Mapping[str, str]
    ) -> RunConfig:
        given = overrides_of(overrides) if isinstance(overrides, Mapping) else overrides
        stand_ins = {key: path for key, path in self.stand_ins.items() if key in values}

        def as_it_will_be(text: str) -> str:
            for key, path in stand_ins.items():
                text = text.replace(path, values[key])
            return text

        source, *given = _filled([source, *given], {**values, **stand_ins})
        try:
            return load_config(as_it_will_be(dump_config(load_config(source, given))))
        except ConfigError as error:
            raise ConfigError(as_it_will_be(str(error))) from None

    def _stand_in(self, name: str, config: RunConfig) -> None:
        run = self.temporary / name / "run"
        (run / "tokenizer").mkdir(parents=True)
        (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        self.stand_ins[f"{name}.run"] = str(run)


def _filled(given: Any, values: Mapping[str, str]) -> Any:
    """With every `${...}` of its texts replaced."""
    if isinstance(given, dict):
        return {key: _filled(value, values) for key, value in given.items()}
    if isinstance(given, list):
        return [_filled(value, values) for value in given]
    return _REFERENCE.sub(partial(_value, values), given) if isinstance(given, str) else given


def _value(values: Mapping[str, str], found: re.Match[str]) -> str:
    dollar, inner = found.groups()
    if dollar:
        return found[0][1:]
    name = inner.removesuffix("}").strip()
    if name not in values or not inner.endswith("}"):
        known = suggest(f"${{{name}}}", [f"${{{key}}}" for key in values])
        raise ConfigError(f"{shown(found[0])}: unknown, or of a stage that is not in needs; {known}")
    return values[name]
