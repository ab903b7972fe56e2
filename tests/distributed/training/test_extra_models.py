"""A critic that is trained beside the run's model: apart from it, and in its checkpoints."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glmforge.checkpoint import StoredTensors
from glmforge.checkpoint.reset import reset_optimizer
from glmforge.errors import CheckpointError, ConfigError
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.hooks import CheckpointHook
from helpers.critic import DiesAfter, with_critic
from helpers.distributed import RankFailure, run_ranks
from helpers.models import run_config
from helpers.tiny_data import TinyData

LAYOUTS: dict[int, dict[str, Any]] = {1: {}, 2: {"dp_shard": 2, "ep": 2}}
PHASE = {"name": "main", "steps": 5, "seq_len": 16, "batch_size": 4}
NEVER = 0


def run(tiny_data: TinyData, root: Path, parallel: dict[str, Any], critic: bool, dies_after: int) -> None:
    torch.set_num_threads(1)
    if critic:
        with_critic()
    config = tiny_data.run_config(
        root,
        phases=[PHASE],
        parallel=parallel,
        regularization={"dropout": 0.1},
        checkpoint={"every_steps": 2, "background": False},
    )
    train(config, [DiesAfter(dies_after)])


def train_on(
    tiny_data: TinyData, root: Path, num_ranks: int, parallel: dict[str, Any], *, critic: bool = True, dies: int = NEVER
) -> list[Record]:
    run_ranks(run, num_ranks, tiny_data, root, parallel, critic, dies, init_group=False)
    return read_jsonl(root / "metrics.jsonl")


def numbers(records: list[Record]) -> list[dict[str, Any]]:
    names = ("step", "loss", "loss_mtp", "loss_aux", "grad_norm", "extra_losses", "extra_grad_norms")
    return [{name: record.get(name) for name in names} for record in records]


def without_critic(records: list[Record]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if "extra" not in name} for each in numbers(records)]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.full), 2], ids="{} ranks".format)
def whole(request: pytest.FixtureRequest, tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with a critic that nothing happens to: its number of ranks, directory and records."""
    root = tmp_path_factory.mktemp("whole") / "run"
    return request.param, root, train_on(tiny_data, root, request.param, LAYOUTS[request.param])


def test_the_critic_learns_and_the_actor_does_not_notice(whole: Any, tiny_data: TinyData, tmp_path: Path) -> None:
    num_ranks, _, records = whole
    values = [record["extra_losses"]["critic"]["value"] for record in records]
    assert values[-1] < 0.8 * values[0]
    alone = train_on(tiny_data, tmp_path / "run", num_ranks, LAYOUTS[num_ranks], critic=False)
    assert without_critic(records) == without_critic(alone)
    assert all("extra_losses" not in record for record in alone)


def test_a_killed_run_resumes_bit_for_bit(whole: Any, tiny_data: TinyData, tmp_path: Path) -> None:
    num_ranks, expected, records = whole
    root = tmp_path / "run"
    with pytest.raises(RankFailure):
        train_on(tiny_data, root, num_ranks, LAYOUTS[num_ranks], dies=3)
    assert [path.name for path in (root / "checkpoints").iterdir() if "step-" in path.name] == ["step-00000002"]
    assert numbers(train_on(tiny_data, root, num_ranks, LAYOUTS[num_ranks])) == numbers(records)
    last = "checkpoints/step-00000005"
    found, whole_run = StoredTensors(root / last), StoredTensors(expected / last)
    assert {name.split(".")[0] for name in found} == {"model", "optim", "rng", "critic"}
    assert any(name.startswith("critic.optim.") for name in found)
    assert all(torch.equal(found[name], whole_run[name]) for name in whole_run)


@pytest.mark.parametrize("two_ranks", [{"tp": 2}, {"pp": 2, "micro_batch_size": 2}], ids=["tp", "pp"])
def test_it_resumes_on_another_layout(
    two_ranks: dict[str, Any], tiny_data: TinyData, tmp_path: Path, whole: Any
) -> None:
    num_ranks, saved, records = whole
    others = 3 - num_ranks
    if others == 1 and "pp" in two_ranks:
        pytest.skip("one rank has one layout")
    root = tmp_path / "run"
    shutil.copytree(saved, root)
    for step in (4, 5):
        shutil.rmtree(root / f"checkpoints/step-0000000{step}")
    resumed = train_on(tiny_data, root, others, two_ranks if others == 2 else {})
    assert [record["step"] for record in resumed] == [1, 2, 3, 4, 5]
    for ours, theirs in zip(resumed[2:], records[2:], strict=True):  # fp32 sums in another order
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["extra_losses"]["critic"] == pytest.approx(theirs["extra_losses"]["critic"], rel=1e-4)


def test_one_model_does_not_go_on_as_two_nor_two_as_one(tiny_data: TinyData, tmp_path: Path) -> None:
    for critic, words in ((True, "contains another trained model, 'critic'"), (False, "lacks the model 'crit")):
        root = tmp_path / f"{critic}"
        train_on(tiny_data, root, 1, {}, critic=critic)
        with pytest.raises(RankFailure, match=f"does not fit this run: it {words}"):
            train_on(tiny_data, root, 1, {}, critic=not critic)
    with pytest.raises(CheckpointError, match=r"contains further trained models \(critic\)"):
        reset_optimizer(tmp_path / "True", tmp_path / "reset")


def test_adapters_with_a_critic_are_refused() -> None:
    config = run_config(init_from="base", lora={"targets": ["q_proj"]}, phases=[PHASE | {"router_bias_rate": 0.0}])
    trainer: Any = SimpleNamespace(
        backend=SimpleNamespace(state_tensors=dict), extra_models={"critic": None}, config=config
    )
    with pytest.raises(ConfigError, match=r"cannot store additional trained models \(critic\)"):
        CheckpointHook(config, {}, "none").resume(trainer)
