"""From YAML to a checked `RunConfig` or `ModelConfig`, and back.

A run file may build on others and is then overridden from the command line; later layers win:

    extends: base.yaml        # or a list; relative to this file, or the bare name of a packaged run
    model: demo               # a preset, a file, a directory with config.json; or a mapping of fields
    model:                    # ... or one of those with changes
      preset: demo
      num_hidden_layers: 6
    init_from: GLM-4.5-Air    # a run that names no model or tokenizer has those of the weights that it starts from

    load_config("run.yaml", ["optim.lr=3e-4", "phases.0.steps=10"])

Mappings merge key by key. Lists and scalars replace, and so does a `model` that names a preset. Only
`extends` is relative to the file it stands in; model, data and output paths are relative to the working
directory of the run.
"""

import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from glmforge.config.explain import explain
from glmforge.config.hf import model_fields_from_hf
from glmforge.config.model import ModelConfig, Strict
from glmforge.config.presets import is_preset_name, preset_names, preset_path
from glmforge.config.schema import RunConfig
from glmforge.config.tree import (
    Node,
    as_mapping,
    assign,
    child,
    dump,
    from_value,
    merge,
    override,
    parse,
    to_value,
    where,
    without_child,
)
from glmforge.errors import ConfigError
from glmforge.files import kind_of, read_json, read_text, shown

_MAX_FILES = 32  # that one configuration is assembled from: ten that extend ten each would be a billion
_MAX_YAML_BYTES = 1 << 18
_MAX_JSON_VALUES = 20_000

_Config = TypeVar("_Config", bound=Strict)


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a run from a file, a run's directory, the name of a packaged run, or YAML text of several lines.

    `overrides` are `dotted.key=value` with the value in YAML: `phases.0.steps=10`, `optim.grad_clip=null`.
    Raises `ConfigError`, one line per mistake, each with file, line, key and what to write instead.
    """
    if isinstance(source, str) and "\n" in source:
        tree = _resolve_extends(as_mapping(parse(source, "configuration")), Path(), _Reading())
    else:
        path = _find(source, "run")
        is_directory = kind_of(path, error=ConfigError) == "directory"
        tree = _read_run(path / "config.yaml" if is_directory else path, _Reading())
    for text in overrides:
        tree = _normalise_model(as_mapping(override(tree, text, "optim.lr=3e-4")))
    return _validate(RunConfig, _resolve_model(_with_deepspeed_file(_with_what_weights_bring(tree))))


def load_model_config(source: str | Path) -> ModelConfig:
    """Load an architecture: a preset's name, a YAML file, a `config.json` or the directory that holds it.

    A run's file, or its directory with `config.yaml`, gives the model of that run. Raises `ConfigError`.
    """
    return _validate(ModelConfig, _read_model(source, _Reading()))


def load_settings(cls: type[_Config], source: Path | Node) -> _Config:
    """Settings that are no part of a run, from a YAML file of their own or a tree. Raises `ConfigError` as above."""
    if isinstance(source, Path):
        source = parse(read_text(source, error=ConfigError, max_bytes=_MAX_YAML_BYTES), str(source))
    return _validate(cls, as_mapping(source))


def dump_config(config: Strict) -> str:
    """A configuration as YAML with every field explicit; `load_config` of it gives an equal one."""
    return dump(config.model_dump(mode="json"))


def _validate(cls: type[_Config], tree: Node) -> _Config:
    try:
        return cls.model_validate(to_value(tree))
    except ValidationError as error:
        raise ConfigError(explain(error, cls, tree)) from None


def _find(source: str | Path, kind: str) -> Path:
    """The file or directory that `source` means; a bare name that is no path is a preset."""
    if isinstance(source, str) and source in preset_names(kind):
        return preset_path(source, kind)
    path = Path(source)
    if kind_of(path, error=ConfigError) is not None:
        return path
    if isinstance(source, str) and is_preset_name(source):
        return preset_path(source, kind)  # raises, with the nearest name
    others = (path.with_suffix(suffix) for suffix in (".yaml", ".yml"))
    other = next((other for other in others if kind_of(other, error=ConfigError) == "file"), None)
    presets = f". {kind.capitalize()} presets: {', '.join(preset_names(kind))}"
    hint = f"; did you mean {shown(other)}?" if other else presets
    raise ConfigError(f"{shown(path)}: no such file{hint}")


@dataclass(frozen=True)
class _Reading:
    """Which files lead to the one being read, and how many have been read in all."""

    ancestors: tuple[Path, ...] = ()
    files: list[Path] = field(default_factory=list)

    def of(self, path: Path) -> "_Reading":
        """The same reading inside `path`; raises if that file is being read already, or is one too many."""
        real = Path(os.path.realpath(path))
        if real in self.ancestors:
            chain = " -> ".join(shown(file) for file in (*self.ancestors, real))
            raise ConfigError(f"{shown(path)}: extends itself: {chain}")
        self.files.append(real)
        if len(self.files) > _MAX_FILES:
            raise ConfigError(
                f"{shown(path)}: is the {len(self.files)}th file of this configuration; at most {_MAX_FILES}"
            )
        return _Reading((*self.ancestors, real), self.files)


def _read_run(path: Path, reading: _Reading) -> yaml.MappingNode:
    """The tree of a run file with its `extends` resolved, `model` still by name."""
    text = read_text(path, error=ConfigError, max_bytes=_MAX_YAML_BYTES)
    return _resolve_extends(as_mapping(parse(text, str(path))), path.parent, reading.of(path))


def _resolve_extends(tree: yaml.MappingNode, directory: Path, reading: _Reading) -> yaml.MappingNode:
    tree = _normalise_model(tree)
    extends = child(tree, "extends")
    if extends is None:
        return tree
    tree = without_child(tree, "extends")
    names = to_value(extends)
    names = names if isinstance(names, list) else [names]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where(extends)}: extends: must be a file, a packaged run's name, or a list of them")
    bases = [_read_run(_find_base(name, directory, where(extends)), reading) for name in names]
    base = bases[0]
    for above in bases[1:]:
        base = _merge_runs(base, above)
    return _merge_runs(base, tree)


def _find_base(name: str, directory: Path, place: str) -> Path:
    if is_preset_name(name):
        return preset_path(name, "run")
    path = directory / name
    if kind_of(path, error=ConfigError) != "file":
        raise ConfigError(f"{place}: extends: {shown(path)}: no such file")
    return path


def _merge_runs(base: yaml.MappingNode, top: yaml.MappingNode) -> yaml.MappingNode:
    """Merge, except that a `model` which names a preset starts afresh."""
    if child(child(top, "model"), "preset") is not None:
        base = without_child(base, "model")
    return as_mapping(merge(base, top))


def _normalise_model(tree: yaml.MappingNode) -> yaml.MappingNode:
    """Write `model: name` as `model: {preset: name}`, the form that fields can be added to."""
    model = child(tree, "model")
    if isinstance(model, yaml.ScalarNode):
        tree = without_child(tree, "model")
        return as_mapping(assign(tree, ["model", "preset"], model, where(model)))
    return tree


def _with_what_weights_bring(tree: yaml.MappingNode) -> yaml.MappingNode:
    """With model and tokenizer of `init_from`, unless the run sets its own."""
    named, data = child(tree, "init_from"), child(tree, "data")
    source = None if named is None else to_value(named)
    if named is None or not isinstance(source, str):
        return tree
    directory, place = _directory_of_weights(Path(source)), where(named)
    if child(tree, "model") is None:
        if kind_of(directory, error=ConfigError) != "directory":
            raise ConfigError(f"{place}: init_from: {shown(directory)}: no such directory")
        try:
            tree = as_mapping(assign(tree, ["model"], _read_model(directory, _Reading()), place))
        except ConfigError as error:
            raise ConfigError(f"{place}: init_from: {error}; or name the model") from None
    if isinstance(data, yaml.MappingNode) and child(data, "tokenizer") is None:
        of_run = directory / "tokenizer"  # beside its checkpoints; a Hugging Face directory has the files itself
        tokenizer = of_run if kind_of(of_run, error=ConfigError) == "directory" else directory
        tree = as_mapping(assign(tree, ["data", "tokenizer"], from_value(str(tokenizer), place), place))
    return tree


def _directory_of_weights(source: Path) -> Path:
    """The run of RUN@STEP; any other source is a directory itself."""
    run, at, step = str(source).rpartition("@")
    is_step = at and step.removeprefix("step-").isdecimal() and kind_of(source, error=ConfigError) is None
    return Path(run) if is_step else source


def _with_deepspeed_file(tree: yaml.MappingNode) -> yaml.MappingNode:
    """With the contents of `deepspeed.file`, and `deepspeed.settings` laid over them."""
    section = child(tree, "deepspeed")
    named = child(section, "file")
    if named is None or not isinstance(section, yaml.MappingNode):
        return tree
    name, place = to_value(named), where(named)
    if not isinstance(name, str):
        raise ConfigError(f"{place}: deepspeed.file: must be a path, not {reprlib.repr(name)}")
    content = read_json(Path(name), dict, error=ConfigError, max_bytes=_MAX_YAML_BYTES, max_values=_MAX_JSON_VALUES)
    whole = merge(from_value({"settings": content}, shown(name)), without_child(section, "file"))
    return as_mapping(assign(tree, ["deepspeed"], whole, place))


def _resolve_model(tree: yaml.MappingNode) -> Node:
    """Replace the model's name by its fields."""
    model = child(tree, "model")
    return tree if model is None else assign(tree, ["model"], _model_fields(model, _Reading()), where(model))


def _model_fields(model: Node, reading: _Reading) -> Node:
    """`{preset: name, ...}` as the fields of the preset with the rest laid over them."""
    preset = child(model, "preset")
    if preset is None:
        return model
    name = to_value(preset)
    if not isinstance(name, str):
        raise ConfigError(f"{where(preset)}: model.preset: must be a name or a path, not {reprlib.repr(name)}")
    try:
        fields = _read_model(name, reading)
    except ConfigError as error:
        raise ConfigError(f"{where(preset)}: model: {error}") from None
    return merge(fields, without_child(as_mapping(model), "preset"))


def _read_model(source: str | Path, reading: _Reading) -> Node:
    """The tree of a model's fields from any of the sources that `load_model_config` takes."""
    path = _find(source, "model")
    if kind_of(path, error=ConfigError) == "directory":
        path = _config_in(path)
    if path.suffix == ".json":
        content = read_json(path, dict, error=ConfigError, max_values=_MAX_JSON_VALUES)
        return from_value(model_fields_from_hf(content, shown(path)), shown(path))
    tree = _read_run(path, reading)
    return _model_fields(child(tree, "model") or tree, reading.of(path))


def _config_in(directory: Path) -> Path:
    for name in ("config.json", "config.yaml"):
        if kind_of(directory / name, error=ConfigError) is not None:
            return directory / name
    raise ConfigError(f"{shown(directory)}: holds neither config.json (a model) nor config.yaml (a run)")
