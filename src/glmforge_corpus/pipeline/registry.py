"""Names of a pipeline file -> the classes that carry them out; a class is imported when a pipeline asks for it."""

from importlib import import_module

from glmforge.config.explain import suggest
from glmforge.errors import ConfigError
from glmforge.extras import needed_for
from glmforge_corpus.block import Block
from glmforge_corpus.pipeline.stage import Stage

STAGES = {
    "extract": "glmforge_corpus.extract.stage:Extract",
    "problems": "glmforge_corpus.synthesise.stage:Problems",
    "clean": "glmforge_corpus.pipeline.clean:Clean",
    "analyze": "glmforge_corpus.pipeline.clean:Analyze",
    "exact": "glmforge_corpus.deduplicate.exact:Exact",
    "minhash": "glmforge_corpus.deduplicate.minhash:MinHash",
    "substring": "glmforge_corpus.deduplicate.substring:Substring",
    "semantic": "glmforge_corpus.deduplicate.semantic:Semantic",
    "decontaminate": "glmforge_corpus.decontaminate.stage:Decontaminate",
    "hold_out": "glmforge_corpus.shape.hold_out:HoldOut",
    "sample": "glmforge_corpus.shape.sample:Sample",
    "repeat": "glmforge_corpus.shape.repeat:Repeat",
    "jsonl": "glmforge_corpus.shape.jsonl:Jsonl",
    "augment": "glmforge_corpus.shape.augment:Augment",
}
BLOCKS = {
    "normalise": "glmforge_corpus.extract.normalise:Normalise",
    "language": "glmforge_corpus.filter.language:Language",
    "gopher_quality": "glmforge_corpus.filter.rules.gopher:GopherQuality",
    "gopher_repetition": "glmforge_corpus.filter.rules.gopher:GopherRepetition",
    "c4": "glmforge_corpus.filter.rules.c4:C4",
    "fineweb": "glmforge_corpus.filter.rules.fineweb:FineWeb",
    "code": "glmforge_corpus.filter.code:Code",
    "boilerplate": "glmforge_corpus.filter.boilerplate:Boilerplate",
    "toxicity": "glmforge_corpus.filter.toxicity:Toxicity",
    "pii": "glmforge_corpus.filter.pii.block:PII",
    "quality": "glmforge_corpus.filter.quality:Quality",
    "datatrove": "glmforge_corpus.pipeline.datatrove:DatatroveBlock",
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
