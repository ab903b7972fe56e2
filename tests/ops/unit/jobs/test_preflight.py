"""What is looked at before a job is submitted."""

from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.preflight import check_fit, check_nodes, find_gpu
from helpers.scheduler_programs import Answers, scheduler_programs

GPUS = LaunchConfig(launcher="slurm", nodes=8, gpus_per_node=8)


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    make = scheduler_programs(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return make


def test_a_run_that_fits_and_one_that_does_not() -> None:
    config = load_config("sft_air_8x8h100")
    assert check_fit(config, GPUS, "h100-80gb") == "by plan it fits H100 SXM"
    # What a whole copy of a model of 106 billion parameters takes on a rank is far above 80 GB.
    larger = load_config("sft_air_8x8h100", ["parallel.dp_shard=1", "parallel.dp_replicate=64", "parallel.ep=1"])
    with pytest.raises(LaunchError, match=r"does not fit: a rank .* H100 SXM has 80.* pass --no-plan") as error:
        check_fit(larger, GPUS, "h100-80gb")
    assert "\n" not in str(error.value)


def test_memory_of_a_node_without_gpus() -> None:
    config, launch = load_config("demo"), LaunchConfig(launcher="slurm", ranks_per_node=2)
    assert "without --mem" in check_fit(config, launch)
    assert check_fit(config, launch.model_copy(update={"mem": "64G"})) == "by plan it fits the memory of its nodes"
    with pytest.raises(LaunchError, match="2 ranks of a node would need"):
        check_fit(config, launch.model_copy(update={"mem": "10M"}))


@pytest.mark.parametrize(
    ("gres", "kind"),
    [
        ("gpu:h200:8(S:0-1)\n", "H200 SXM"),
        ("gpu:h100:8,nvme:1\ngpu:h100:4\n", "H100 SXM"),
        ("gpu:h100:8\ngpu:h200:8\n", None),  # which of them the job gets, nobody knows
        ("gpu:8\n", None),
        ("(null)\n", None),
        ("gpu:unheard:8\n", None),
    ],
)
def test_the_kind_that_slurm_tells(answers: Answers, gres: str, kind: str | None) -> None:
    answers(sinfo={"": (0, gres, "")})
    found = find_gpu(GPUS, None)
    assert (found and found.name) == kind
    if kind is None:
        assert "pass --gpu" in check_fit(load_config("sft_air_8x8h100"), GPUS)


def test_the_kind_of_this_machine(answers: Answers) -> None:
    answers(**{"nvidia-smi": {"": (0, "NVIDIA H200\nNVIDIA H200\n", "")}})
    found = find_gpu(LaunchConfig(launcher="local", gpus_per_node=2), None)
    assert found is not None
    assert found.name == "H200 SXM"


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(LaunchError, match="--gpu h300: unknown; choose one of A100 SXM 40GB"):
        find_gpu(GPUS, "h300")


def test_nodes_that_are_not_sound(answers: Answers) -> None:
    """Neither host answers: there is no ssh that reaches them."""
    refused = "ssh: connect to host node1 port 22: Connection refused\n"
    answers(ssh={"": (255, "", refused)})
    with pytest.raises(
        LaunchError, match=r"node\[1-2\]: reach\.ssh: unreachable: no ssh server answers.*pass --no-check"
    ):
        check_nodes(LaunchConfig(launcher="ssh", nodes=2, hosts=["node[1-2]"]))


def test_nodes_of_a_scheduler_are_not_known_yet() -> None:
    assert check_nodes(GPUS) is None
    assert check_nodes(LaunchConfig(launcher="local")) is None
