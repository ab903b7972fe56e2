"""A pipeline file: which stages, where to, on what.

    output: out/corpus
    seed: 0
    stages:
      - extract: {inputs: [{source: web, path: crawl/}, {source: books, path: books.jsonl.zst}]}
      - clean: [normalise, language: {keep: [en, zh]}, gopher_quality, {quality: {model: q.npz, threshold: 0.5}}]
      - exact
      - minhash: {threshold: 0.85}
    executors:
      local: {workers: 8}
      slurm: {partition: cpu, time: "12:00:00"}

A stage, or a block within `clean`, is its name, or a mapping of its name to its options. Relative paths are relative to
the working directory, as everywhere in the project.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Field, ValidationError

from glmforge.config.explain import Mistake, mistakes
from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict
from glmforge.config.tree import Node, as_mapping, child, from_value, override, parse, to_value, where, without_child
from glmforge.data.files import printable
from glmforge.errors import ConfigError
from glmforge_corpus.block import Block
from glmforge_corpus.pipeline.clean import Clean
from glmforge_corpus.pipeline.registry import block_class, stage_class
from glmforge_corpus.pipeline.settings import ExecutorSettings
from glmforge_corpus.pipeline.stage import Stage

_Part = TypeVar("_Part", bound=Strict)


class Settings(Strict):
    """What a pipeline file says beside its stages."""

    output: YamlPath = Field(description="output directory: documents, report, and work files in .work")
    name: str = Field(default="corpus", description="title of the report")
    seed: int = Field(default=0, ge=0, description="seed of all random choices: samples, splits, hashes")
    keep_intermediate: bool = Field(
        default=True,
        description="keep the output of each stage, so that later stages can be repeated with other options; "
        "otherwise only two stages use disk space at a time",
    )
    executors: ExecutorSettings = Field(
        default_factory=ExecutorSettings, description="executor settings, by executor name"
    )


class Pipeline(Settings):
    """A pipeline file, read and checked.

    Attributes:
        stages: in order; the first reads raw files, each other one the documents of the one before.
    """

    stages: tuple[Stage, ...]


def load_pipeline(path: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline file; `overrides` are `dotted.key=value`, such as `output=/scratch/out`.

    Raises:
        ConfigError: one line per mistake, with file, line, key and what to write instead.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    return parse_pipeline(text, str(path), overrides)


def parse_pipeline(text: str, source: str = "pipeline", overrides: Sequence[str] = ()) -> Pipeline:
    """`load_pipeline` of a text; `source` is the name that errors call it by."""
    tree: Node = as_mapping(parse(text, source))
    for change in overrides:
        tree = override(tree, change, "output=out2")
    return _pipeline(tree, {})


def pipeline_of(value: Mapping[str, Any], source: str, names: Mapping[str, str]) -> Pipeline:
    """The pipeline of a file's contents as plain values.

    Args:
        value: what a pipeline file would hold.
        source: where the values come from, in the words of errors.
        names: what errors call a key and all below it, such as {"minhash.threshold": "--threshold"}.

    Raises:
        ConfigError: one line per mistake, with the key or its name and what to write instead.
    """
    _refuse_half_characters(value)
    return _pipeline(from_value(dict(value), source), names)


def _refuse_half_characters(value: object) -> None:
    """A pipeline is kept as a text file: a file name in it must be text. Raises `ConfigError`."""
    if isinstance(value, str) and value != printable(value):
        raise ConfigError(
            f"{printable(value)}: the name is not UTF-8, which a pipeline file cannot contain; list its directory "
            "instead (files inside may have any name), or rename it"
        )
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _refuse_half_characters(item)


def _pipeline(tree: Node, names: Mapping[str, str]) -> Pipeline:
    entries = child(tree, "stages")
    if not isinstance(entries, yaml.SequenceNode) or not entries.value:
        raise ConfigError(f"{where(entries or tree)}: stages: should be a list of stages, the first of them 'extract'")
    settings = _validate(Settings, without_child(as_mapping(tree), "stages"), "", names)
    stages = tuple(_stage(entry, names) for entry in entries.value)
    return Pipeline(**{name: getattr(settings, name) for name in Settings.model_fields}, stages=stages)


def _stage(entry: Node, names: Mapping[str, str]) -> Stage:
    kind, options = _named(entry, "a stage")
    cls = _found(stage_class, kind, entry)
    if not issubclass(cls, Clean):
        return _validate(cls, options, kind, names)
    if not isinstance(options, yaml.SequenceNode) or not options.value:
        raise ConfigError(f"{where(options)}: {kind}: should be a list of blocks, such as [normalise, gopher_quality]")
    return cls(blocks=tuple(_block(block, names) for block in options.value))


def _block(entry: Node, names: Mapping[str, str]) -> Block:
    kind, options = _named(entry, "a block")
    return _validate(_found(block_class, kind, entry), options, kind, names)


def _found(find: Callable[[str], type[_Part]], kind: str, entry: Node) -> type[_Part]:
    """The class that `find` knows by `kind`; its complaint about another one names the line."""
    try:
        return find(kind)
    except ConfigError as error:
        raise ConfigError(f"{where(entry)}: {error}") from None


def _named(entry: Node, what: str) -> tuple[str, Node]:
    """`name` or `name: options` -> (name, options)."""
    if isinstance(entry, yaml.ScalarNode) and entry.value:
        return entry.value, yaml.MappingNode("tag:yaml.org,2002:map", [], entry.start_mark, entry.end_mark)
    if isinstance(entry, yaml.MappingNode) and len(entry.value) == 1:
        (key, options) = entry.value[0]
        if isinstance(options, yaml.ScalarNode) and options.tag.endswith(":null"):
            options = yaml.MappingNode("tag:yaml.org,2002:map", [], entry.start_mark, entry.end_mark)
        return key.value, options
    raise ConfigError(f"{where(entry)}: {what} should be its name, or one name with its options below it")


def _validate(cls: type[_Part], tree: Node, kind: str, names: Mapping[str, str]) -> _Part:
    try:
        return cls.model_validate_json(json.dumps(to_value(tree)))  # YAML has no more types than JSON
    except ValidationError as error:
        raise ConfigError("\n".join(_line(found, kind, names) for found in mistakes(error, cls, tree))) from None


def _line(mistake: Mistake, kind: str, names: Mapping[str, str]) -> str:
    """`file:3: stage: key: message`, or `name: message` where the key has a name of its own."""
    place, key, message = mistake
    path = f"{kind}.{key}".strip(".").split(".")
    prefixes = (".".join(path[:length]) for length in range(len(path), 0, -1))
    name = next((names[prefix] for prefix in prefixes if prefix in names), None)
    return ": ".join(part for part in ((name, message) if name else (place, kind, key, message)) if part)


def dump_pipeline(pipeline: Pipeline) -> dict[str, Any]:
    """A pipeline as plain values, every option explicit, in the form of a pipeline file."""
    settings = {name: getattr(pipeline, name) for name in Settings.model_fields}
    dumped = Settings(**settings).model_dump(mode="json")
    return dumped | {"stages": [dump_stage(stage) for stage in pipeline.stages]}


def dump_stage(stage: Stage) -> dict[str, Any]:
    """A stage as plain values, every option explicit."""
    if isinstance(stage, Clean):
        return {stage.kind: [{block.kind: block.model_dump(mode="json")} for block in stage.blocks]}
    return {stage.kind: stage.model_dump(mode="json")}
