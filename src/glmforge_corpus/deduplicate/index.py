"""What a deduplication leaves for the next one: new documents are compared with old ones, of which no text is read.

An index is the directory of a `minhash` stage that ran with `store`; it is never changed. Its band keys make the
candidates, and what it stores besides verifies them:

    signatures  every text's signature: similarities are estimated; 4 bytes per permutation, about 0.5 kB per text
    shingles    every text's shingle hashes, too: verification stays exact; about 8 bytes more per word

A stage that compares with an index and stores as well names it in its own: naming the newest is then enough.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from glmforge.errors import DataError
from glmforge_corpus.deduplicate.signatures import Bands, Shingling
from glmforge_corpus.pipeline.stage import task_directory
from glmforge_corpus.pipeline.statistics import dump_json

INDEX = "index.json"
SIGNATURES, BUCKETS, SETS, SIMILARITY, CLUSTERS = "signatures", "buckets", "sets", "similarity", "clusters"
"""The names of the steps of a `minhash` stage, and so of their directories."""

Store = Literal["nothing", "signatures", "shingles"]


@dataclass(frozen=True)
class Member:
    """A shard that takes part in a comparison: where what is known of it lies.

    Attributes:
        stage: directory of the stage that it went through.
        shard: its number there.
        sets: whether the shingles of all its texts are stored.
    """

    stage: Path
    shard: int
    sets: bool

    def directory(self, step: str) -> Path:
        return task_directory(self.stage, step, self.shard)


@dataclass(frozen=True)
class IndexInfo:
    """What `index.json` says: how its signatures were made, how many shards there are, which indexes go before.

    Attributes:
        chain: earlier indexes, oldest first, as absolute paths.
    """

    shingling: dict[str, str | int | bool]
    bands: tuple[int, int]
    store: Store
    num_shards: int
    chain: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        return dump_json(asdict(self))

    @classmethod
    def load(cls, stage: Path) -> Self:
        """Raises `DataError` where there is no index that is whole."""
        path = task_directory(stage, CLUSTERS, 0) / INDEX
        try:
            stored = json.loads(path.read_bytes())
            stored["bands"], stored["chain"] = tuple(stored["bands"]), tuple(stored["chain"])
            return cls(**stored)
        except FileNotFoundError as error:
            raise DataError(
                f"{stage}: no index; pass the directory of a minhash stage that ran with 'store'"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); rebuild the index") from error


def chain_of(indexes: Sequence[Path]) -> list[Path]:
    """The indexes named and all that they build on, oldest first, each once."""
    found: list[Path] = []
    for index in indexes:
        for stage in [*map(Path, IndexInfo.load(index).chain), index.absolute()]:
            if stage not in found:
                found.append(stage)
    return found


def old_members(indexes: Sequence[Path], shingling: Shingling, bands: Bands) -> list[Member]:
    """The shards of indexes, which must have been made in the same way.

    Raises:
        DataError: an index is missing, or differs in an option.
    """
    members = []
    for stage in chain_of(indexes):
        info = IndexInfo.load(stage)
        for name, have, want in (
            ("shingle options", info.shingling, shingling.model_dump()),
            ("bands x rows", tuple(info.bands), tuple(bands)),
        ):
            if have != want:
                raise DataError(f"{stage}: its {name} are {have}, but {want} here; use the same, or rebuild the index")
        members += [Member(stage, shard, info.store == "shingles") for shard in range(info.num_shards)]
    return members
