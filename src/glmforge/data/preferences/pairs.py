"""Files of preferences as pairs of token ids in memory, encoded once and kept beside the file.

Nothing is omitted in silence: wrong records, pairs with two equal answers (they say nothing), and pairs that are too
long are counted, and the first wrong ones shown with line and reason. Exact duplicates are counted and stay: a file may
repeat what matters. What is kept is one `.npz` file, whose name has in it all that the encoding depends on.
"""

import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.cache import encoded_identity
from glmforge.data.chat.read import read_records
from glmforge.data.files import alone_in, write_whole
from glmforge.data.preferences.encode import EncodedPair, encode_pair
from glmforge.data.preferences.records import PREFERENCE_FIELDS, preference_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import parse_json
from glmforge.observe.units import counted

logger = logging.getLogger(__name__)

_NUM_PROBLEMS_KEPT = 10
_VERSION = 1
"""Of what encoding makes of a record; one more whenever that changes."""


@dataclass
class PairCounts:
    """What became of the records; of the pairs kept, in how many the chosen answer is longer or equally long, and how
    many occurred before."""

    records: int = 0
    wrong: int = 0
    ties: int = 0
    too_long: int = 0
    kept: int = 0
    duplicates: int = 0
    chosen_longer: int = 0
    equally_long: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """In one line."""
        said = [counted(self.records, "record")]
        said += [f"{self.wrong:,} of them invalid"] if self.wrong else []
        said += [f"{self.ties:,} with two equal answers, dropped"] if self.ties else []
        said += [f"{self.too_long:,} too long and dropped"] if self.too_long else []
        said.append(counted(self.kept, "pair"))
        said += [f"{self.duplicates:,} of them duplicates"] if self.duplicates else []
        share = (self.chosen_longer + self.equally_long / 2) / max(1, self.kept)
        return ", ".join([*said, f"the chosen answer is the longer one in {share:.0%}"])


@dataclass(frozen=True, kw_only=True)
class PairArrays:
    """P pairs. Side 0 is chosen, side 1 rejected.

    Attributes:
        ids: int32, of all pairs, chosen before rejected, end to end; `is_trained` tells the answers' tokens.
        lengths_P2: tokens of each side, prompt included.
        prompts_P: tokens of the prompt.
        margins_P: float32.
        categories_P: index into `names`.
        names: of the categories.
    """

    ids: NDArray[np.int32]
    is_trained: NDArray[np.bool_]
    lengths_P2: NDArray[np.int64]
    prompts_P: NDArray[np.int64]
    margins_P: NDArray[np.float32]
    categories_P: NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lengths_P2)

    @property
    def starts_P2(self) -> NDArray[np.int64]:
        """Where each side's ids begin."""
        ends = self.lengths_P2.flatten().cumsum()
        return np.concatenate([[0], ends[:-1]]).reshape(-1, 2)


def encode_records(
    paths: Sequence[Path], tokenizer: Tokenizer, config: ChatConfig, counts: PairCounts
) -> Iterator[tuple[str, EncodedPair]]:
    """The pairs of files with their places, in order; what becomes of the records is added to `counts`.

    Raises:
        DataError: a file cannot be read on; a pair is longer than `max_tokens` where `overlong: refuse` is set.
    """
    seen = set[bytes]()
    for record in read_records(paths, PREFERENCE_FIELDS):
        counts.records += 1
        try:
            preference = preference_of(record.parse())
            if preference.is_tie:
                counts.ties += 1
                continue
            pair = encode_pair(preference, tokenizer, config)
        except DataError as error:
            counts.wrong += 1
            said = str(error)
            if len(counts.problems) < _NUM_PROBLEMS_KEPT:
                counts.problems.append(said if said.startswith(record.where) else f"{record.where}: {said}")
            continue
        if config.max_tokens is not None and pair.length > config.max_tokens:
            if config.overlong == "refuse" and "overlong" in config.model_fields_set:
                raise DataError(
                    f"{record.where}: {pair.length:,} tokens, more than {config.max_tokens:,}; raise seq_len, or set "
                    "overlong: drop"
                )
            counts.too_long += 1
            continue
        _count(pair, counts, seen)
        yield record.where, pair


def _count(pair: EncodedPair, counts: PairCounts, seen: set[bytes]) -> None:
    key = hashlib.blake2b(digest_size=16)
    for side in (pair.chosen, pair.rejected):
        key.update(len(side.ids).to_bytes(8, "little") + side.ids.tobytes())
    counts.duplicates += key.digest() in seen
    seen.add(key.digest())
    counts.kept += 1
    counts.chosen_longer += len(pair.chosen.ids) > len(pair.rejected.ids)
    counts.equally_long += len(pair.chosen.ids) == len(pair.rejected.ids)


def pair_arrays(pairs: Sequence[EncodedPair]) -> PairArrays:
    sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    names = tuple(sorted({pair.category for pair in pairs}))
    return PairArrays(
        ids=np.concatenate([side.ids for side in sides]),
        is_trained=np.concatenate([side.is_trained for side in sides]),
        lengths_P2=np.array([len(side.ids) for side in sides], np.int64).reshape(-1, 2),
        prompts_P=np.array([pair.num_prompt for pair in pairs], np.int64),
        margins_P=np.array([pair.margin for pair in pairs], np.float32),
        categories_P=np.array([names.index(pair.category) for pair in pairs], np.int64),
        names=names,
    )


def pairs_path(path: Path, tokenizer: Tokenizer, config: ChatConfig, directory: Path | None = None) -> Path:
    """Where the pairs of a file are kept: in `directory`, or beside the file. Reads all of the file."""
    identity = encoded_identity(path, tokenizer, config)
    return (directory or path.parent) / f"{path.name}.pairs{_VERSION}-{identity.hex()[:16]}.npz"


def ensure_pairs(path: Path, kept: Path, tokenizer: Tokenizer, config: ChatConfig) -> None:
    """Encode a file of preferences into `kept` (`pairs_path`) unless it is there.

    Raises:
        DataError: more records are wrong than `config.max_wrong`, no pair is left, or nothing can be written.
    """
    if kept.is_file():
        return
    if kept.parent == path.parent and not os.access(path.parent, os.W_OK):
        raise DataError(f"{path.parent}: not writable, so encoded pairs cannot be kept there; set data.encoded_dir")
    with alone_in(kept.parent):
        if kept.is_file():
            return
        logger.info("encoding the preferences of %s", path)
        counts = PairCounts()
        pairs = [pair for _, pair in encode_records([path], tokenizer, config, counts)]
        if counts.wrong > config.max_wrong:
            raise DataError(
                f"{counts.problems[-1]} (invalid records: {counts.wrong:,}, allowed: {config.max_wrong:,}; fix "
                "it, or set chat.max_wrong of the source)"
            )
        if not pairs:
            raise DataError(f"{path}: no pair to train on ({counts.summary()}); raise seq_len, or use another file")
        write_whole(kept, _packed(pair_arrays(pairs), counts))


def load_pairs(kept: Path, *, tell: Callable[[str], None] = lambda line: None) -> PairArrays:
    """What `ensure_pairs` has kept. `tell` gets its summary and the first records that were wrong.

    Raises `DataError` if it is damaged.
    """
    try:
        with np.load(kept, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
        about = parse_json(arrays.pop("about").tobytes().decode(), dict, source=str(kept), error=DataError)
        names, counts = tuple(about["names"]), PairCounts(**about["counts"])
        pairs = PairArrays(**arrays, names=names)
        if pairs.lengths_P2.sum() != len(pairs.ids) or len(pairs.ids) != len(pairs.is_trained):
            raise ValueError("lengths do not add up")
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, DataError) as error:
        raise DataError(f"{kept}: damaged ({error}); remove it to encode the preferences again") from error
    for line in (counts.summary(), *counts.problems):
        tell(line)
    return pairs


def _packed(pairs: PairArrays, counts: PairCounts) -> bytes:
    about = json.dumps({"names": pairs.names, "counts": asdict(counts)}).encode()
    arrays = {name: value for name, value in vars(pairs).items() if name != "names"}
    with io.BytesIO() as file:
        np.savez(file, about=np.frombuffer(about, np.uint8), **arrays)
        return file.getvalue()
