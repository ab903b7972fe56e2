"""Which items of a benchmark are in the text that a run was trained on.

This is the exact rule of `glmforge data decontaminate` (`glmforge.data.passages`) on the run's own token shards,
decoded: a question is leaked if a document has 13 of its words in a row, or all of a shorter question; case,
punctuation and accents do not count. Questions of fewer than 8 words are not searched for, and n-grams of more than 10
items prove nothing. Paraphrases, translations and answers alone are not found.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmforge.config.data import SourceConfig
from glmforge.config.load import load_config
from glmforge.data.passages.normalised_words import fold_table
from glmforge.data.passages.passage_index import COMMON_ITEMS, MIN_WORDS, RUN_WORDS, SEED_WORDS, build_index
from glmforge.data.passages.passage_search import scan
from glmforge.data.tokens.shards import TokenShard, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.evaluate.result import Item
from glmforge.evaluate.statistics import Estimate, estimate
from glmforge.observe.run import RunDirectory

_BATCH_CHARACTERS = 1 << 22
_ENCODED = re.compile(r"\.tokens-[0-9a-f]{16}\.idx$")
_NO_SHARE = 1e9  # no share of a question's words is proof, only runs are


@dataclass
class Leaks:
    """The leaked items of a benchmark."""

    benchmark: str
    num_items: int
    num_searchable: int  # items whose question can be searched for
    found: dict[int, str] = field(default_factory=dict)  # number of a leaked item -> the shard that has it

    def scores(self, items: Iterable[Item]) -> list[Estimate | None]:
        """Of a result: all items of this benchmark, those not leaked, those leaked; None where there are no items."""
        own = [item for item in items if item.benchmark == self.benchmark]
        parts = own, [i for i in own if i.number not in self.found], [i for i in own if i.number in self.found]
        return [
            estimate([i.score for i in part], [i.cluster or f"item {i.number}" for i in part]) if part else None
            for part in parts
        ]


def find_leaks(questions: Mapping[str, Sequence[str]], documents: Iterable[tuple[str, str]]) -> list[Leaks]:
    """Search documents for questions.

    Args:
        questions: of each benchmark, in the order of its items' numbers.
        documents: (name of the shard, text).
    """
    owners = [(name, number) for name, texts in questions.items() for number in range(len(texts))]
    text, offsets = _as_bytes([text for texts in questions.values() for text in texts])
    index = build_index(text, offsets, np.arange(len(owners)), SEED_WORDS, COMMON_ITEMS)
    searchable = iter(index.searchable(RUN_WORDS, MIN_WORDS).tolist())
    leaks = {name: Leaks(name, len(texts), sum(next(searchable) for _ in texts)) for name, texts in questions.items()}

    def search(part: list[tuple[str, str]]) -> None:
        hits, _ = scan(*_as_bytes([text for _, text in part]), fold_table(), index.table, index.table)
        for document, passage, *_ in index.judge(hits, RUN_WORDS, _NO_SHARE, MIN_WORDS).tolist():
            name, number = owners[passage]
            leaks[name].found.setdefault(number, part[document][0])

    part, size = [], 0
    for document in documents:
        part.append(document)
        size += len(document[1])
        if size >= _BATCH_CHARACTERS:
            search(part)
            part, size = [], 0
    if part:
        search(part)
    return list(leaks.values())


def documents_of(sources: Sequence[Path], tokenizer: Path | None = None) -> Iterator[tuple[str, str]]:
    """Shard and text, without control tokens, of each document in runs' training data or in given shards.

    Args:
        sources: runs, or prefixes of shards.
        tokenizer: directory, instead of the runs' own.

    Raises:
        DataError: no such run or shard, conversations that are not encoded, no tokenizer, or another than the shard's.
    """
    opened = [_shards(source, tokenizer) for source in sources]  # before hours of reading: is anything missing?
    for shards, words in opened:
        for shard in shards:
            for number in range(shard.num_documents):
                yield str(shard.prefix), words.decode(shard.document(number).tolist(), skip_special_tokens=True)


def _shards(source: Path, given: Path | None) -> tuple[list[TokenShard], Tokenizer]:
    if source.is_dir():
        config, own = load_config(source).data, RunDirectory(source).tokenizer
        prefixes = [prefix for one in config.sources for prefix in _prefixes(one, config.encoded_dir)]
        directory = given or (own if own.is_dir() else config.tokenizer)
    elif not any(path.exists() for path in shard_paths(_prefix(source))):
        raise DataError(f"{source}: no run and no token shard is there; correct the path")
    elif given is None:
        raise DataError(f"{source}: a shard does not say where its tokenizer is; give --tokenizer, or the run")
    else:
        prefixes, directory = [_prefix(source)], given
    shards, words = [TokenShard(prefix) for prefix in prefixes], Tokenizer.load(directory)
    for shard in shards:
        shard.check_tokenizer(words)
    return shards, words


def _prefix(source: Path) -> Path:
    return Path(str(source).removesuffix(".bin").removesuffix(".idx"))


def _prefixes(source: SourceConfig, encoded_dir: Path | None) -> list[Path]:
    """The shard of a source; of conversations all encodings of the file."""
    if not source.is_conversations:
        return [source.path]
    names = sorted((encoded_dir or source.path.parent).glob(f"{escape(source.path.name)}.tokens-*.idx"))
    if not (found := [path.with_suffix("") for path in names if _ENCODED.search(path.name)]):
        raise DataError(f"{source.path}: its encoded conversations are missing; encode them with 'glmforge data chat'")
    return found


def _as_bytes(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode(errors="replace") for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets
