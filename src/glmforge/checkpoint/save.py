"""Write a checkpoint: all of it or, as far as anybody can see, nothing.

1. Rank 0 creates a hidden directory beside the final name.
2. Every rank writes its shards there, through torch.distributed.checkpoint (DCP). What several ranks hold, be
   it plain or a part of a DTensor, is written once, by the one of them that has least to write.
3. Every rank forces its files to the disk and hashes them.
4. Rank 0 adds `meta.json` and the manifest and gives the directory its name.

A failure of any rank in any step makes all ranks raise the same `CheckpointError`; the hidden directory is
removed, and older checkpoints are not touched.

Two traits of DCP matter here. Its writer runs on one thread on purpose: with `thread_count` > 1 an error in a
helper thread is lost and the save succeeds without that thread's tensors. And a full disk surfaces as a
`RuntimeError` of torch's zip writer with the `OSError` as its context, which is lost when the error is sent
to the other ranks; the writer below therefore puts it into words where it happens.
"""

import errno
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from glmforge.checkpoint.collective import raise_failures, rank, run_on_rank_zero, run_together
from glmforge.checkpoint.durable import write_durably
from glmforge.checkpoint.manifest import (
    FileRecord,
    find_problems,
    record_file,
    write_manifest,
)
from glmforge.checkpoint.meta import META_FILE, CheckpointMeta
from glmforge.checkpoint.store import checkpoint_path, list_checkpoints, make_partial, partial_path, publish
from glmforge.checkpoint.wording import describe_os_error
from glmforge.checkpoint.writers import BalancedSavePlanner
from glmforge.errors import CheckpointError
from glmforge.observe.units import format_bytes

RNG_PREFIX = "rng."  # generator states are stored among the tensors, one for each rank

_DCP_METADATA_FILE = ".metadata"


def save_checkpoint(
    root: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: CheckpointMeta,
    *,
    rng_state: Tensor | None = None,
) -> Path:
    """Write the checkpoint `<root>/step-<step>` and return its directory. All ranks call this together.

    `tensors` are this rank's, named as the loading run will ask for them ("model.<parameter>", "optim.<state>"):
    plain tensors or DTensors on any mesh. Ranks of other pipeline stages pass other names; a name that several
    ranks pass is the same tensor, cut into the same parts. `rng_state` (uint8) is this rank's own generator
    state. A checkpoint of the same step is replaced. Raises `CheckpointError`, on all ranks the same, if any
    rank cannot write.
    """
    assert step == meta.step, f"step {step} is saved with the meta of step {meta.step}"
    final = checkpoint_path(root, step)
    own = {} if rng_state is None else {rng_name(rank()): rng_state}
    try:
        partial = run_on_rank_zero(lambda: make_partial(final))
        _write_shards(partial, {**tensors, **own})
        records = run_together(lambda: _record_own_files(partial))
        run_on_rank_zero(lambda: _finish(partial, final, meta, records))
    except CheckpointError as error:
        last = run_on_rank_zero(lambda: _abandon(final))
        raise CheckpointError(f"{final} was not saved: {error}. {last}") from error
    return final


def rng_name(of_rank: int) -> str:
    """Name under which the generator state of a rank is stored among the tensors."""
    return f"{RNG_PREFIX}{of_rank:05d}"


def _write_shards(partial: Path, tensors: dict[str, Tensor]) -> None:
    writer = _ShardWriter(partial, sum(t.numel() * t.element_size() for t in tensors.values()))
    with dcp_errors_in_words(), dcp_warnings_silenced():
        save(tensors, storage_writer=writer, planner=BalancedSavePlanner())


class _ShardWriter(FileSystemWriter):
    """DCP's writer, with errors put into words on the rank where they happen."""

    def __init__(self, path: Path, total_bytes: int) -> None:
        super().__init__(path, thread_count=1)
        self.total_bytes = total_bytes

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        with self._errors_in_words():
            return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with self._errors_in_words():
            return super().write_data(plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        with self._errors_in_words():
            super().finish(metadata, results)

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(self._describe(error)) from error
        except RuntimeError as error:  # torch's zip writer, after its file refused a write
            if not isinstance(error.__context__, OSError):
                raise
            raise CheckpointError(self._describe(error.__context__)) from error

    def _describe(self, error: OSError) -> str:
        partial = Path(self.path)
        message = describe_os_error(error, f"writing {partial}")
        if error.errno != errno.ENOSPC:
            return message
        available = shutil.disk_usage(partial).free + _size_of(partial)
        lacking = self.total_bytes - available
        enough = f": at least {format_bytes(lacking)} more" if lacking > 0 else ""
        return f"{message} (the checkpoint takes {format_bytes(self.total_bytes)}{enough})"


@contextmanager
def dcp_errors_in_words(*, alone: bool = False) -> Iterator[None]:
    """Turn the failures that DCP gathered from all ranks into one `CheckpointError`; `alone`, those of this rank.

    Whatever is not a failure of the disk or of the user is a defect, or Ctrl-C, and stays what it is.
    """
    try:
        yield
    except CheckpointException as error:
        causes = {r: cause for r, (cause, _) in error.failures.items()}
        for cause in causes.values():
            if isinstance(cause, KeyboardInterrupt):
                raise cause from error
            if not isinstance(cause, OSError | CheckpointError):
                raise RuntimeError(str(error)) from error
        messages = {r: describe_os_error(c) if isinstance(c, OSError) else str(c) for r, c in causes.items()}
        if alone:
            raise CheckpointError(*messages.values()) from error
        raise_failures(messages)


@contextmanager
def dcp_warnings_silenced() -> Iterator[None]:
    """DCP warns whenever it works for one process alone, which is no accident here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _record_own_files(partial: Path) -> dict[str, FileRecord]:
    files = sorted(partial.glob(f"__{rank()}_*"))
    if rank() == 0:
        files.append(partial / _DCP_METADATA_FILE)
    return {file.name: record_file(file) for file in files}


def _finish(partial: Path, final: Path, meta: CheckpointMeta, records: list[dict[str, FileRecord]]) -> None:
    files = {name: record for of_rank in records for name, record in of_rank.items()}
    for name in files:
        if not (partial / name).exists():
            raise CheckpointError(
                f"{partial / name} is not to be seen from rank 0: output_dir must be on a file system "
                "that all nodes share"
            )
    write_durably(partial / META_FILE, meta.model_dump_json(indent=1))
    files[META_FILE] = record_file(partial / META_FILE)
    write_manifest(partial, files)
    publish(partial, final)


def _abandon(final: Path) -> str:
    """Remove what was written, so that it does not fill the disk; say what the run can fall back on."""
    shutil.rmtree(partial_path(final), ignore_errors=True)  # what stays is removed by the next save
    whole = (path for path in list_checkpoints(final.parent) if not find_problems(path, checksums=False))
    last = next(whole, None)
    return f"The last whole checkpoint is {last.name}" if last else "There is no older checkpoint"


def _size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())
