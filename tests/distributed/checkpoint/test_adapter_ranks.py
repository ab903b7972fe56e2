"""Adapters saved by ranks that say nothing to each other, and read on other layouts."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from glmforge.checkpoint import latest_checkpoint, list_checkpoints, load_latest, load_rng_state, verify_checkpoint
from glmforge.checkpoint.adapter.base import base_weights, base_weights_together
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.format.sharded_adapter import read_description
from glmforge.checkpoint.format.store import note_whole, step_of
from glmforge.checkpoint.source_files import read_files, stored_files
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from helpers.adapters import assert_holds, blank, laid_out, make_info, whole_tensors
from helpers.checkpoints import make_meta
from helpers.distributed import run_ranks
from helpers.models import tiny_config


def rng_of(rank: int, step: int) -> torch.Tensor:
    return torch.full((16,), 10 * rank + step, dtype=torch.uint8)


def make_saver(root: Path, layout: str, mode: str = "full", **config: object) -> AdapterSaver:
    settings = CheckpointConfig.model_validate({"keep_last": 2} | config)
    tensors = laid_out(whole_tensors(0), layout)
    return AdapterSaver(
        root / "checkpoints",
        settings,
        tensors,
        make_info(mode),
        run_name="test",
        rng_state=rng_of(dist.get_rank(), 0),
    )


def count_messages() -> tuple[int, int]:
    """Collectives over all groups of this rank so far, and the number of groups."""
    groups = list(distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups), len(groups)


def save(saver: AdapterSaver, layout: str, *steps: int, durable: bool = True, ephemeral: bool = False) -> None:
    """Saves without a single collective, of any group."""
    for step in steps:
        tensors = laid_out(whole_tensors(step), layout)
        meta, state = make_meta(step), rng_of(dist.get_rank(), step)
        before = count_messages()
        saver.save(step, tensors, meta, rng_state=state, durable=durable, ephemeral=ephemeral)
        saver.finish_copy()
        saver.wait()
        assert count_messages() == before


def save_steps(root: Path, layout: str, mode: str, *steps: int) -> list[str | None]:
    saver = make_saver(root, layout, mode)
    save(saver, layout, *steps)
    return [report.error for report in saver.poll()]


def load(root: Path, layout: str) -> tuple[int, list[int] | None]:
    tensors = blank(laid_out(whole_tensors(0), layout))
    path, meta = load_latest(root / "checkpoints", tensors)
    lite = read_description(path).mode == "lite"
    if lite:
        assert all(int(t.sum()) == 0 for name, t in tensors.items() if name.startswith("optim.") and t.dim() == 0)
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    assert_holds(tensors, meta.step)
    state = load_rng_state(path)
    return meta.step, None if state is None else state.tolist()


@pytest.mark.parametrize(
    ("layout", "ranks", "other", "other_ranks"),
    [
        ("fsdp", 4, "fsdp", 3),  # 4 and 10 rows over 4 and 3 ranks: uneven, and some without any
        ("hsdp", 4, "tp", 2),
        pytest.param("tp", 4, "plain", 1, marks=pytest.mark.full),
        ("ep", 4, "hsdp", 2),
        ("pp", 3, "fsdp", 2),
        pytest.param("plain", 1, "pp", 2, marks=pytest.mark.full),
    ],
)
def test_any_layout_reads_what_another_wrote(tmp_path, layout, ranks, other, other_ranks):
    assert run_ranks(save_steps, ranks, tmp_path, layout, "full", 3) == [[None]] * ranks
    path = latest_checkpoint(tmp_path / "checkpoints")
    assert verify_checkpoint(path) == []
    assert read_description(path).num_shards == ranks
    assert run_ranks(load, ranks, tmp_path, layout) == [(3, rng_of(r, 3).tolist()) for r in range(ranks)]
    assert run_ranks(load, other_ranks, tmp_path, other) == [(3, None)] * other_ranks


def save_with_files(root: Path, shared: bool) -> tuple[tuple[tuple[int, ...], ...], list[dict[str, bytes]]]:
    """Of every rank: one file. Whose parts are a checkpoint, and what rank r of 4 is given again."""
    local = {} if shared else {"local_dir": str(disk(root))}
    settings = CheckpointConfig.model_validate({"keep_last": 2} | local)
    tensors, rank = laid_out(whole_tensors(0), "hsdp"), dist.get_rank()
    saver = AdapterSaver(root / "checkpoints", settings, tensors, make_info("lite"), run_name="test", writes_files=True)
    files = stored_files({"buffer": bytes([rank])}, rank, 4)
    saver.save(3, laid_out(whole_tensors(3), "hsdp"), make_meta(3), files=files, durable=True)
    (report,) = saver.poll()
    dist.barrier()
    loaded = load_latest(root / "checkpoints", blank(tensors), local_root=None if shared else disk(root) / "test")
    assert loaded is not None
    assert report.error is None
    return saver.plan.copies, read_files(loaded[0], rank, 4)


@pytest.mark.parametrize("shared", [True, False])
def test_files_of_all_ranks_belong_to_it_though_fewer_hold_the_adapters(tmp_path, shared):
    every = ((0, 1, 2, 3),)  # of adapters alone each node would have a whole checkpoint
    assert run_ranks(save_with_files, 4, tmp_path, shared) == [(every, [{"buffer": bytes([r])}]) for r in range(4)]
    assert verify_checkpoint(latest_checkpoint(tmp_path / "checkpoints")) == []


def disk(root: Path) -> Path:
    """This rank's node's disk: two ranks to a node."""
    return root / f"disk-{dist.get_rank() // 2}"


def save_locally(root: Path, layout: str, *steps: int) -> list[int]:
    """Ephemeral saves in the background; the steps on this node's disk at the end."""
    saver = make_saver(root, layout, local_dir=str(disk(root)), keep_ephemeral=1)
    save(saver, layout, *steps, durable=False, ephemeral=True)
    return sorted(step_of(path) for path in list_checkpoints(disk(root) / "test"))


def resume_locally(root: Path, layout: str) -> tuple[int, str, list[int] | None]:
    tensors = blank(laid_out(whole_tensors(0), layout))
    path, meta = load_latest(root / "checkpoints", tensors, local_root=disk(root) / "test")
    assert_holds(tensors, meta.step)
    state = load_rng_state(path)
    return meta.step, str(path.relative_to(root)), None if state is None else state.tolist()


def test_with_a_copy_of_the_model_per_node_each_node_has_a_whole_checkpoint(tmp_path):
    """Nothing is on shared storage, each node reads its own disk, and one of the two is enough."""
    # Of five saves the last two are too new to be known to be good everywhere; of the others the newest stays.
    assert run_ranks(save_locally, 4, tmp_path, "hsdp", 1, 2, 3, 4, 5) == [[3, 4, 5]] * 4
    assert list((tmp_path / "checkpoints").glob("step-*")) == []
    expected = [(5, f"disk-{r // 2}/test/step-00000005", rng_of(r, 5).tolist()) for r in range(4)]
    assert run_ranks(resume_locally, 4, tmp_path, "hsdp") == expected
    (tmp_path / "disk-1").rename(tmp_path / "replaced node")
    found = run_ranks(resume_locally, 4, tmp_path, "hsdp")
    assert found == [(5, "checkpoints/step-00000005", None)] * 4  # the states of two generators are gone
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-00000005") == []


def test_parts_of_nodes_that_hold_half_each_come_together(tmp_path):
    run_ranks(save_locally, 4, tmp_path, "fsdp", 1, 2)
    expected = [(2, "checkpoints/step-00000002", rng_of(r, 2).tolist()) for r in range(4)]
    assert run_ranks(resume_locally, 4, tmp_path, "fsdp") == expected
    assert run_ranks(load, 1, tmp_path, "plain") == [(2, None)]


def save_alone(root: Path, step: int) -> None:
    """Rank 0 writes to its node's disk, the other one does not come to it."""
    saver = make_saver(root, "fsdp", local_dir=str(root / f"disk-{dist.get_rank()}"))
    tensors = laid_out(whole_tensors(step), "fsdp")
    if dist.get_rank() == 0:
        saver.save(step, tensors, make_meta(step), rng_state=rng_of(0, step))
        saver.wait()
    dist.barrier()


def resume_alone(root: Path) -> int | str | None:
    local_root = root / f"disk-{dist.get_rank()}" / "test"
    try:
        found = load_latest(root / "checkpoints", blank(laid_out(whole_tensors(0), "fsdp")), local_root=local_root)
    except CheckpointError as error:
        return str(error)
    return None if found is None else found[1].step


def test_what_was_never_whole_is_no_reason_not_to_begin(tmp_path):
    """A rank says "saved" when its part is; only later do all know that the others' are too."""
    run_ranks(save_alone, 2, tmp_path, 1)
    (tmp_path / "events.jsonl").write_text('{"event": "saved", "step": 1}\n')
    assert run_ranks(resume_alone, 2, tmp_path) == [None, None]
    run_ranks(save_alone, 2, tmp_path, 1)
    note_whole(tmp_path / "checkpoints")
    assert all("no complete checkpoint" in said for said in run_ranks(resume_alone, 2, tmp_path))


def save_everywhere(root: Path, *steps: int) -> None:
    saver = make_saver(root, "fsdp", local_dir=str(root / f"disk-{dist.get_rank()}"), keep_ephemeral=1)
    save(saver, "fsdp", *steps, durable=False)
    dist.barrier()


def test_starts_leave_nothing_behind_that_grows(tmp_path):
    """A resume puts a checkpoint together on shared storage; a start that dies leaves a part, and what it deleted."""
    for step in (1, 3, 5):
        run_ranks(save_everywhere, 2, tmp_path, step)
        assert run_ranks(resume_alone, 2, tmp_path) == [step, step]
        run_ranks(save_alone, 2, tmp_path, step + 1)
        for disk in ("disk-0", "disk-1"):
            (tmp_path / disk / "test" / f".step-{step:08d}.deleted-elsewhere-1").mkdir()
    run_ranks(save_everywhere, 2, tmp_path, 7)
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*step*")) == ["step-00000003", "step-00000005"]
    for disk in ("disk-0", "disk-1"):
        assert [step_of(path) for path in list_checkpoints(tmp_path / disk / "test") if step_of(path) in (2, 4)] == []
        assert not list((tmp_path / disk / "test").glob(".*"))


def lose_a_save(root: Path, layout: str) -> list[list[int]]:
    """The disk of node 1 has no room for steps 3 and 4; its ranks say so as the trainer's votes would."""
    saver = make_saver(root, layout, local_dir=str(disk(root)), keep_last=1, max_failed_saves=9)
    held = []
    for step in range(1, 8):
        if step in (3, 4) and dist.get_rank() == 3:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("glmforge.checkpoint.adapter.saver.save_rank", _no_room)
                save(saver, layout, step, durable=False)
        else:
            save(saver, layout, step, durable=False)
        if step in (3, 4):
            saver.failed_elsewhere()
        held.append(sorted(step_of(path) for path in list_checkpoints(disk(root) / "test")))
        dist.barrier()
    return held


def _no_room(directory, *args, **kwargs):
    raise CheckpointError(f"no space left on device writing {directory}")


def test_a_node_never_deletes_the_last_good_one_because_it_could_write_itself(tmp_path):
    held = run_ranks(lose_a_save, 4, tmp_path, "fsdp")[0]
    # Steps 3 and 4 are on this node, but on no other: 2 goes only when 5 is known to be good.
    assert all(2 in steps for steps in held[1:6])
    assert held[-1] == [5, 6, 7]


def save_lite(root: Path) -> list[str | None]:
    return save_steps(root, "fsdp", "lite", 1, 2, 3, 4)


def test_lite_has_weights_and_position_and_the_newest_stay(tmp_path):
    run_ranks(save_lite, 3, tmp_path)
    root = tmp_path / "checkpoints"
    assert [step_of(path) for path in list_checkpoints(root)] == [4, 3]  # keep_last = 2
    newest = latest_checkpoint(root)
    assert list(newest.glob("training_state*")) == []
    assert run_ranks(load, 2, tmp_path, "fsdp") == [(4, None)] * 2


def save_without_the_others(root: Path) -> str | None:
    """Rank 0 saves; the other one never comes."""
    saver = make_saver(root, "fsdp")
    tensors = laid_out(whole_tensors(1), "fsdp")
    if dist.get_rank() != 0:
        return None
    saver.save(1, tensors, make_meta(1), rng_state=rng_of(0, 1))
    saver.wait()
    return saver.poll()[0].error


def test_no_rank_waits_for_another(tmp_path):
    assert run_ranks(save_without_the_others, 2, tmp_path) == [None, None]
    assert list_checkpoints(tmp_path / "checkpoints") == []


def test_ranks_share_the_reading_of_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And have the fingerprint that one process takes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base, config = tmp_path / "base", tiny_config(num_nextn_predict_layers=0)
    state = {name: torch.rand(row.shape) for name, row in parameter_table(config).items()}
    export_hf(state, config, base, max_shard_bytes=100_000)
    assert len(list(base.glob("*.safetensors"))) > 2
    assert run_ranks(base_weights_together, 2, base) == [base_weights(base)] * 2
