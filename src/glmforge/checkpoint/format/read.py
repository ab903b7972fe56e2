"""A checkpoint's tensors as a mapping that reads each when it is requested, in one process, without a model.

    weights = StoredTensors(path, prefix="model.")
    weights["lm_head.weight"]          # read now, assembled from all ranks' shards

What exports and inspects a checkpoint need not hold it in memory as a whole. DCP plans which stored parts go where;
its own reading, which unpickles both the metadata and every part, is replaced: nothing in a checkpoint is ever run.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.futures import Future

from glmforge.checkpoint.format.inert_pickle import InertPickleError
from glmforge.checkpoint.format.manifest import find_problems, summarize_problems
from glmforge.checkpoint.format.shard_metadata import METADATA_FILE, read_shard_metadata
from glmforge.checkpoint.format.sharded_adapter import DESCRIPTION_FILE, is_sharded_adapter, read_slice_metadata
from glmforge.checkpoint.format.shards import dcp_errors_in_words
from glmforge.checkpoint.format.stored_part import StoredPart, plain_part, read_part_header
from glmforge.errors import CheckpointError
from glmforge.runtime.os_errors import describe_os_error

T = TypeVar("T")


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of the checkpoint directory `path` whose names begin with `prefix`, by the rest of their
    names.

    Each is read anew at every access: a plain CPU tensor in the stored type. Only one process takes part,
    also where a process group exists. Raises `CheckpointError` if the checkpoint is incomplete; `verify=False`
    compares sizes but not checksums.
    """

    def __init__(self, path: Path, prefix: str = "", *, verify: bool = True) -> None:
        if problems := find_problems(path, checksums=verify):
            raise CheckpointError(f"{path} is incomplete: {summarize_problems(problems)}; use an older checkpoint")
        self._reader = CachingReader(path)
        self._prefix = prefix
        self._stored = stored_tensors(self._reader.read_metadata(), prefix)

    def __getitem__(self, name: str) -> Tensor:
        full_name = self._prefix + name
        stored = self._stored[full_name]
        tensor = torch.empty(stored.size, dtype=stored.properties.dtype)
        read_into({full_name: tensor}, self._reader)
        return tensor

    def shape(self, name: str) -> torch.Size:
        """Shape of a tensor, without reading it."""
        return self._stored[self._prefix + name].size

    def dtype(self, name: str) -> torch.dtype:
        """Type of a tensor, without reading it."""
        return self._stored[self._prefix + name].properties.dtype

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class CachingReader(FileSystemReader):
    """DCP's reader without its unpickling; the metadata of a checkpoint (megabytes for a large model) is read once.

    Adapters in slices (`sharded_adapter`) are read as well, planned by DCP all the same. `only` is that of
    `read_shard_metadata`, for checkpoints of other programs.
    """

    def __init__(self, path: Path, only: Callable[[str], bool] | None = None) -> None:
        super().__init__(path)
        self._only = only
        self._metadata: Metadata | None = None
        self._is_sliced = only is None and is_sharded_adapter(path)

    @property
    def metadata_file(self) -> str:
        """Name of the file that says where the tensors lie."""
        return DESCRIPTION_FILE if self._is_sliced else METADATA_FILE

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        if self._metadata is None:
            read = read_slice_metadata if self._is_sliced else partial(read_shard_metadata, only=self._only)
            self._metadata = read(Path(self.path))
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for file, items in self._by_file(plan.items, key=lambda item: item.storage_index):
            try:
                with (Path(self.path) / file).open("rb") as stream:
                    for item in items:
                        self._read_item(stream, item, planner)
            except OSError as error:
                raise CheckpointError(describe_os_error(error, f"reading {Path(self.path) / file}")) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def read(self, name: str, row: int | None = None) -> Tensor:
        """A stored tensor, or of its first dim `row` only, without reading the others. Raises `CheckpointError`."""
        stored = self.read_metadata().state_dict_metadata[name]
        assert isinstance(stored, TensorStorageMetadata)
        first, rows = (0, stored.size[0]) if row is None else (row, 1)
        box = ChunkStorageMetadata(torch.Size((first, *(0 for _ in stored.size[1:]))), (rows, *stored.size[1:]))
        whole = torch.empty(box.sizes, dtype=stored.properties.dtype)
        self.read_data(LoadPlan(create_read_items_for_chunk_list(name, stored, [box])), _IntoOne(whole))
        return whole if row is None else whole[0]

    def find_damaged_parts(self) -> Iterator[str]:
        """One line for each stored part whose header is not what the metadata says; no tensor is read."""
        for file, indices in self._by_file(self.read_metadata().storage_data, key=lambda index: index):
            with (Path(self.path) / file).open("rb") as stream:
                for index in indices:
                    try:
                        self._header(stream, index)
                    except CheckpointError as error:
                        yield str(error)

    def _by_file(self, items: Iterable[T], key: Callable[[T], MetadataIndex]) -> Iterator[tuple[str, Iterator[T]]]:
        """The items by the file that they are stored in, in the order in which they lie there."""
        places = self.read_metadata().storage_data

        def place(item: T) -> tuple[str, int]:
            return places[key(item)].relative_path, places[key(item)].offset

        return itertools.groupby(sorted(items, key=place), key=lambda item: place(item)[0])

    def _read_item(self, stream: BufferedReader, item: ReadItem, planner: LoadPlanner) -> None:
        assert item.type is LoadItemType.TENSOR, "the metadata contains only these"
        header = self._header(stream, item.storage_index)
        target = planner.resolve_tensor(item).detach()
        try:
            target.copy_(header.read(stream, item.storage_offsets, item.lengths))
        except InertPickleError as error:
            raise CheckpointError(self._describe(item.storage_index, error)) from error
        planner.commit_tensor(item, target)

    def _header(self, stream: BufferedReader, index: MetadataIndex) -> StoredPart:
        metadata = self.read_metadata()
        stored, place = metadata.state_dict_metadata[index.fqn], metadata.storage_data[index]
        assert isinstance(stored, TensorStorageMetadata)
        try:
            sizes = next(tuple(chunk.sizes) for chunk in _candidates(stored, index) if chunk.offsets == index.offset)
            if self._is_sliced:  # its header has been compared already
                return plain_part(stored.properties.dtype, sizes, place.offset)
            part = read_part_header(stream, place.offset, place.length)
            if (part.dtype, part.shape) != (stored.properties.dtype, sizes):
                raise InertPickleError(f"{part.dtype} {list(part.shape)} instead of {stored.properties.dtype} {sizes}")
        except InertPickleError as error:
            raise CheckpointError(self._describe(index, error)) from error
        return part

    def _describe(self, index: MetadataIndex, error: Exception) -> str:
        file = Path(self.path) / self.read_metadata().storage_data[index].relative_path
        return f"{file}: has no readable part of {index.fqn} ({error}); use an older checkpoint"


class _IntoOne(DefaultLoadPlanner):
    """What is read goes into one tensor."""

    def __init__(self, whole: Tensor) -> None:
        super().__init__()
        self._whole = whole

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._whole


def _candidates(stored: TensorStorageMetadata, index: MetadataIndex) -> Iterator[ChunkStorageMetadata]:
    """The tensor's parts, the one that the index points to first."""
    if index.index is not None and 0 <= index.index < len(stored.chunks):
        yield stored.chunks[index.index]
    yield from stored.chunks


def stored_tensors(metadata: Metadata, prefix: str = "") -> dict[str, TensorStorageMetadata]:
    """Full name -> shape and type of the stored tensors whose names begin with `prefix`."""
    return {
        name: stored
        for name, stored in metadata.state_dict_metadata.items()
        if name.startswith(prefix) and isinstance(stored, TensorStorageMetadata)
    }


def read_into(tensors: Mapping[str, Tensor], reader: CachingReader) -> None:
    """Read into `tensors`, in place, what this rank holds of them. No other rank takes part.

    DCP's planning together would send every rank's list of reads to rank 0 and back, and nothing comes of it: what
    a rank reads depends on no other rank. Raises `CheckpointError`.
    """
    # Names are taken as they are: DCP's handling of nested and of old state dicts has no part in it.
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with dcp_errors_in_words(alone=True):
        load(dict(tensors), storage_reader=reader, planner=planner, no_dist=True)
