"""A chain's stages resolved: whole configurations, commands, options and places, checked before anything starts.

A stage may begin from what an earlier one will have written. For the check, its run is stood in for by a directory of
its configuration alone: all that a configuration takes from a run are its model and tokenizer.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config.launch import LaunchConfig
from glmforge.config.load import dump_config, load_config, load_settings
from glmforge.config.schema import RunConfig
from glmforge.config.secrets import HIDDEN, take_secrets
from glmforge.config.tree import from_value
from glmforge.errors import ConfigError
from glmforge_ops.jobs.chain.file import ChainFile, StageFile, look_up, substituted
from glmforge_ops.jobs.several import is_noted

_MAX_NAME = 64


@dataclass(frozen=True)
class ChainStage:
    """A stage as it will run. `config` is None for a command; `run` is the run's directory."""

    name: str
    job: str
    needs: tuple[str, ...]
    launch: LaunchConfig
    command: tuple[str, ...]
    config: RunConfig | None
    run: Path | None
    outputs: Mapping[str, Path]


def resolve_stages(chain: ChainFile, jobs: Path, directory: Path) -> list[ChainStage]:
    """The stages in an order in which they can run.

    Args:
        jobs: where jobs lie.
        directory: in which all stages run, and that relative paths belong to.

    Raises `ConfigError`, which names the stage.
    """
    with ExitStack() as stack:
        resolver = _Resolver(chain, jobs, directory, stack)
        stages = [resolver.stage(name) for name in chain.in_order()]
    _refuse_same_places(stages, directory)
    return stages


class _Resolver:
    """The stages that are resolved so far, and what later ones may name of them."""

    def __init__(self, chain: ChainFile, jobs: Path, directory: Path, stack: ExitStack) -> None:
        self.chain, self.jobs, self.directory, self._stack = chain, jobs, directory, stack
        self._values: dict[str, dict[str, str]] = {}
        self._secrets: dict[str, Any] = {}
        self._stand_ins: dict[str, str] = {}
        """Directory of a stage's run -> what stands in for it."""

    def stage(self, name: str) -> ChainStage:
        given, job = self.chain.stages[name], f"{self.chain.name}-{name}"
        place = f"stage {name}"
        if len(job) > _MAX_NAME:
            raise ConfigError(f"{place}: its job would be called {job}: {len(job)} characters, of {_MAX_NAME} at most")
        self._values[name] = {"job": str((self.jobs / job).absolute())}
        outputs = {key: self._filled(text, name, f"{place}: outputs.{key}") for key, text in given.outputs.items()}
        self._values[name] |= {f"outputs.{key}": str(self.directory / text) for key, text in outputs.items()}
        config = self._config(name, given)
        run = None if config is None else self.directory / config.output_dir
        if config is not None and run is not None:
            self._values[name]["run"] = str(run)
            self._stand_in(run, config)
        return ChainStage(
            name=name,
            job=job,
            needs=tuple(dict.fromkeys(given.needs)),
            launch=self._launch(name, given),
            command=tuple(self._command(name, given)),
            config=config,
            run=run,
            outputs={key: self.directory / text for key, text in outputs.items()},
        )

    def _filled(self, text: str, stage: str, place: str) -> str:
        """With the places that it names."""
        seen = {stage, *self.chain.all_needs(stage)}
        allowed = {name: values for name, values in self._values.items() if name in seen}
        names = list(self.chain.stages)
        return substituted(text, place, lambda inner, at: look_up(inner, at, allowed, stage, names))

    def _config(self, name: str, given: StageFile) -> RunConfig | None:
        if given.config is None:
            return None
        place = f"stage {name}"
        source = self._filled(given.config, name, f"{place}: config")
        overrides = [self._filled(text, name, f"{place}: overrides") for text in _as_overrides(given.overrides)]
        for run, stand_in in sorted(self._stand_ins.items(), reverse=True):  # of a/b and a/b2, the longer one first
            overrides = [text.replace(run, stand_in) for text in overrides]
        try:
            config = load_config(source, overrides)
        except ConfigError as error:
            raise ConfigError(f"{place}: {self._as_it_will_be(str(error))}") from None
        return load_config(self._as_it_will_be(dump_config(config)))

    def _stand_in(self, run: Path, config: RunConfig) -> None:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="glmforge-chain-")))
        (directory / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        (directory / "tokenizer").mkdir()
        self._stand_ins[str(run)] = str(directory)

    def _as_it_will_be(self, text: str) -> str:
        for run, stand_in in self._stand_ins.items():
            text = text.replace(stand_in, run)
        return text

    def _launch(self, name: str, given: StageFile) -> LaunchConfig:
        place = f"stage {name}: launch"
        options = self._filled_values(_merged(self.chain.launch, given.launch), name, place)
        for key in ("dependency", "array"):
            if key in options:
                raise ConfigError(f"{place}.{key}: belongs to the chain; name stages in needs")
        if isinstance(given_env := options.get("env"), dict):
            options["env"] = self._without_secrets(given_env, f"{place}.env")
        launch = load_settings(LaunchConfig, from_value(options, place))
        if not is_noted(launch):
            raise ConfigError(
                f"{place}: a stage that runs from here needs the supervisor, which notes how it ends; leave out "
                "supervise: false, starter: torchrun and launcher: mpi"
            )
        return launch

    def _without_secrets(self, env: Mapping[str, Any], place: str) -> dict[str, Any]:
        hidden = take_secrets(env)
        for name, value in env.items():
            if hidden[name] == HIDDEN != value and self._secrets.setdefault(name, value) != value:
                raise ConfigError(f"{place}.{name}: is a secret, and other stages give it another value; rename it")
        return hidden

    def _filled_values(self, value: Any, stage: str, place: str) -> Any:
        if isinstance(value, str):
            return self._filled(value, stage, place)
        if isinstance(value, dict):
            return {key: self._filled_values(each, stage, f"{place}.{key}") for key, each in value.items()}
        return value  # lists are of names of nodes

    def _command(self, name: str, given: StageFile) -> list[str]:
        words = [self._filled(word, name, f"stage {name}: command") for word in given.words]
        return [sys.executable, "-m", "glmforge", *words[1:]] if words[:1] == ["glmforge"] else words


def _as_overrides(given: Sequence[str] | Mapping[str, Any]) -> list[str]:
    if not isinstance(given, Mapping):
        return list(given)
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(common)
    for key, value in own.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _refuse_same_places(stages: Sequence[ChainStage], directory: Path) -> None:
    """Each stage writes to places of its own."""
    seen: dict[Path, str] = {}
    for stage in stages:
        config = stage.config
        apart = [] if config is None else [config.checkpoint.dir, config.observe.tensorboard_dir]
        places = [stage.run, *stage.outputs.values(), *(directory / place for place in apart if place is not None)]
        for place in dict.fromkeys(place.absolute() for place in places if place is not None):
            other = seen.setdefault(place, stage.name)
            if other != stage.name:
                raise ConfigError(
                    f"stages {other} and {stage.name} both write to {place}; give one of them another output_dir, or "
                    "another output"
                )
