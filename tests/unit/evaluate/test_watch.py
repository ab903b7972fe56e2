"""Checkpoints are evaluated as they appear: each once, oldest first, until the run has ended."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.checkpoint.format.store import delete_checkpoint, list_checkpoints
from glmforge.checkpoint.save import save_checkpoint
from glmforge.errors import CheckpointError, DataError, GlmforgeError
from glmforge.evaluate.result import Result, write_result
from glmforge.evaluate.watch import watch
from glmforge.observe.run import record_event
from helpers.checkpoints import make_meta, make_tensors, save_steps

SETTINGS = {"benchmarks": {"gsm8k": "digest"}, "asking": {"limit": (1, 2)}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has started."""
    run = tmp_path / "run"
    record_event(run, "started", step=0)
    (run / "config.yaml").write_text("name: run\n")
    return run


class Evaluated:
    """Writes a result of each checkpoint, and remembers which there were."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, checkpoint: Path, out: Path) -> None:
        self.names.append(checkpoint.name)
        out.mkdir(parents=True, exist_ok=True)
        write_result(out, Result(model=str(checkpoint), settings=SETTINGS, scores=()), [])


def in_turn(*actions: Callable[[], object]) -> Callable[[float], None]:
    """Instead of waiting: what happens to the run meanwhile. Waiting once more is a failure."""
    left = list(actions)

    def wait(_: float) -> None:
        left.pop(0)()

    return wait


def test_until_the_run_has_ended(run: Path, tmp_path: Path) -> None:
    root, evaluated = run / "checkpoints", Evaluated()
    save_steps(root, 20, 10)
    save_checkpoint(root, 15, make_tensors(15), make_meta(15).model_copy(update={"ephemeral": True}))
    (save_steps(root, 5)[0] / "meta.json").unlink()  # broken
    wait = in_turn(
        lambda: save_steps(root, 30),
        lambda: record_event(run, "stopped", step=30),
        lambda: record_event(run, "resumed", step=30),  # looked at twice, it has not ended
        lambda: record_event(run, "finished", step=40),
        lambda: save_steps(root, 40),  # behind the event
        lambda: None,
    )
    assert watch(run, tmp_path / "out", SETTINGS, evaluated, wait=wait) == 4
    assert evaluated.names == [f"step-000000{step}" for step in (10, 20, 30, 40)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["step-10", "step-20", "step-30", "step-40"]
    assert watch(run, tmp_path / "out", SETTINGS, evaluated, once=True) == 0
    save_steps(root, 50)
    assert watch(run, tmp_path / "out", SETTINGS, evaluated, once=True, wait=in_turn()) == 1


def test_one_that_is_deleted_meanwhile_is_passed_over(run: Path, tmp_path: Path) -> None:
    root, evaluated = run / "checkpoints", Evaluated()
    save_steps(root, 10, 20)

    def evaluate(checkpoint: Path, out: Path) -> None:
        if checkpoint.name.endswith("10"):
            delete_checkpoint(checkpoint)
            raise CheckpointError("not there")
        evaluated(checkpoint, out)

    assert watch(run, tmp_path / "out", SETTINGS, evaluate, once=True) == 1
    assert evaluated.names == ["step-00000020"]
    save_steps(root, 30)
    with pytest.raises(CheckpointError, match="damaged"):
        watch(run, tmp_path / "out", SETTINGS, _fail, once=True)
    assert len(list_checkpoints(root)) == 2


def _fail(checkpoint: Path, out: Path) -> None:
    raise CheckpointError("damaged")


def test_refused(run: Path, tmp_path: Path) -> None:
    evaluated = Evaluated()
    with pytest.raises(GlmforgeError, match=r"none: not a run \(no config.yaml\)"):
        watch(tmp_path / "none", tmp_path / "out", SETTINGS, evaluated, once=True)
    save_steps(run / "checkpoints", 10)
    watch(run, tmp_path / "out", SETTINGS, evaluated, once=True)
    with pytest.raises(DataError, match="step-10: is of other benchmarks or settings; give another --out"):
        watch(run, tmp_path / "out", SETTINGS | {"asking": {}}, evaluated, once=True)
