"""What a run omits since a loss spike, kept beside its checkpoints.

The run goes back to a checkpoint that does not know of the spike yet. If it is killed before the next one, only this
file keeps it from running into the same batches again.
"""

import json
from pathlib import Path

from glmforge.observe.run import RunDirectory, RunFileError, write_text
from glmforge.training.source import Range
from glmforge.training.state import TrainState


def remember_skipped(root: Path, state: TrainState) -> None:
    """Write `state.skipped` and `state.rollbacks` to the run directory."""
    content = {"rollbacks": state.rollbacks, "skipped": state.skipped}
    write_text(RunDirectory(root).skipped, json.dumps(content, indent=2) + "\n")


def recall_skipped(root: Path) -> tuple[dict[str, list[Range]], int]:
    """What `remember_skipped` wrote last: samples by phase, and the number of rollbacks; nothing if it never did."""
    path = RunDirectory(root).skipped
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ranges = {name: [(start, stop) for start, stop in some] for name, some in content["skipped"].items()}
        return ranges, int(content["rollbacks"])
    except FileNotFoundError:
        return {}, 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFileError(
            f"{path}: unreadable ({error}); restore it, or delete it to forget the skipped samples"
        ) from error
