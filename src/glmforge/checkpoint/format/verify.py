"""Is a checkpoint whole, and nothing but a checkpoint? Checksums first, then what the files say.

Checksums show that the files match the list; they say nothing about who wrote them, or what is in them. So the
contents are read as a load would read them, up to the numbers of the tensors: `meta.json`, the metadata (DCP's, or that
of adapters in slices) with its places, and the header of every stored part. What is no tensor, names code or points
elsewhere is a problem.
"""

from pathlib import Path

from glmforge.checkpoint.format.manifest import MANIFEST_FILE, find_problems, read_manifest
from glmforge.checkpoint.format.meta import META_FILE, read_meta
from glmforge.checkpoint.format.read import CachingReader
from glmforge.checkpoint.format.shard_metadata import METADATA_FILE, read_shard_metadata
from glmforge.checkpoint.format.sharded_adapter import is_sharded_adapter, read_description
from glmforge.errors import CheckpointError


def verify_checkpoint(path: Path) -> list[str]:
    """Check every file of the checkpoint directory `path`; one line per problem, empty if all is well."""
    return find_problems(path, checksums=True) or _find_problems_inside(path)


def find_local_metadata_problems(directory: Path) -> list[str]:
    """What is wrong with the metadata in a step's directory on a node's own disk, which lacks other nodes' files."""
    try:
        if is_sharded_adapter(directory):
            read_description(directory)
        elif (directory / METADATA_FILE).exists():
            read_shard_metadata(directory, complete=False)
    except CheckpointError as error:
        return [str(error)]
    return []


def _find_problems_inside(path: Path) -> list[str]:
    try:
        read_meta(path)
        reader = CachingReader(path)
        stored_in = {place.relative_path for place in reader.read_metadata().storage_data.values()}
        if unlisted := sorted({reader.metadata_file, META_FILE, *stored_in} - read_manifest(path).files.keys()):
            return [f"{path / unlisted[0]}: {MANIFEST_FILE} does not list it; use an older checkpoint"]
        return list(reader.find_damaged_parts())
    except OSError as error:
        return [f"{path}: cannot be read ({error.strerror})"]
    except CheckpointError as error:
        return [str(error)]
