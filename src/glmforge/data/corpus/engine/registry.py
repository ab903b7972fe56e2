"""Names of a pipeline file -> the classes that carry them out; a class is imported when a pipeline asks for it."""

from importlib import import_module

from glmforge.config.explain import suggest
from glmforge.data.corpus.block import Block
from glmforge.data.corpus.engine.stage import Stage
from glmforge.errors import ConfigError
from glmforge.extras import needed_for

STAGES = {
    "extract": "glmforge.data.corpus.extract.stage:Extract",
    "problems": "glmforge.data.corpus.synthesise.stage:Problems",
    "clean": "glmforge.data.corpus.engine.clean:Clean",
    "analyze": "glmforge.data.corpus.engine.clean:Analyze",
    "exact": "glmforge.data.corpus.dedup.exact.stage:Exact",
    "minhash": "glmforge.data.corpus.dedup.minhash.stage:MinHash",
    "substring": "glmforge.data.corpus.dedup.substring.stage:Substring",
    "semantic": "glmforge.data.corpus.dedup.semantic.stage:Semantic",
    "decontaminate": "glmforge.data.corpus.dedup.decontamination.stage:Decontaminate",
    "hold_out": "glmforge.data.corpus.shape.hold_out:HoldOut",
    "sample": "glmforge.data.corpus.shape.sample:Sample",
    "repeat": "glmforge.data.corpus.shape.repeat:Repeat",
    "jsonl": "glmforge.data.corpus.shape.jsonl:Jsonl",
    "augment": "glmforge.data.corpus.shape.augment:Augment",
}
BLOCKS = {
    "normalise": "glmforge.data.corpus.extract.normalise:Normalise",
    "language": "glmforge.data.corpus.filter.language.block:Language",
    "gopher_quality": "glmforge.data.corpus.filter.rules.gopher:GopherQuality",
    "gopher_repetition": "glmforge.data.corpus.filter.rules.gopher:GopherRepetition",
    "c4": "glmforge.data.corpus.filter.rules.c4:C4",
    "fineweb": "glmforge.data.corpus.filter.rules.fineweb:FineWeb",
    "code": "glmforge.data.corpus.filter.code.block:Code",
    "boilerplate": "glmforge.data.corpus.filter.boilerplate.block:Boilerplate",
    "toxicity": "glmforge.data.corpus.filter.toxicity.block:Toxicity",
    "pii": "glmforge.data.corpus.filter.pii.block:PII",
    "quality": "glmforge.data.corpus.filter.quality.block:Quality",
    "datatrove": "glmforge.data.corpus.engine.datatrove:DatatroveBlock",
}


def stage_class(kind: str) -> type[Stage]:
    """The stage of that name. Raises `ConfigError` with the nearest name."""
    found = _load(kind, STAGES, "stage")
    assert issubclass(found, Stage)
    return found


def block_class(kind: str) -> type[Block]:
    """The block of that name. Raises `ConfigError` with the nearest name."""
    found = _load(kind, BLOCKS, "block")
    assert issubclass(found, Block)
    return found


def _load(kind: str, names: dict[str, str], what: str) -> type:
    if kind not in names:
        raise ConfigError(f"unknown {what} '{kind}': {suggest(kind, names)}")
    module, _, name = names[kind].partition(":")
    with needed_for(f"{what} '{kind}'"):
        found = getattr(import_module(module), name)
    assert isinstance(found, type)
    return found
