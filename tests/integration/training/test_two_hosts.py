"""Adapters trained over two hosts with a slow link and disks of their own: saved without a byte over the link, cut off,
killed, resumed to the bit, collected by `glmforge adapter gather`, and loaded by PEFT."""

import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.format.store import list_checkpoints, step_of
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.config import RunConfig, dump_config
from glmforge.observe.record_files import read_jsonl
from helpers.command import Commands, own_lines
from helpers.distributed import run_ranks
from helpers.job import Job, start_job
from helpers.linked_hosts import LinkedHost, linked_hosts, write_ssh
from helpers.linked_runs import Save, count_saves, linked_run, write_base
from helpers.tiny_data import TinyData

STEPS, EVERY = 16, 4
TIMEOUT_S = 10
"""Of collectives."""
ENDS_WITHIN_S = TIMEOUT_S + 20 + 60
"""After the link has been cut: until a collective gives up, until all have been asked, and some time to end."""
TRAILING = 500
"""Bytes: some acknowledgements of the step before."""

Hosts = tuple[LinkedHost, LinkedHost]
MakeRun = Callable[[str], RunConfig]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with linked_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_data: TinyData) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "hf", tiny_data)


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory, tiny_data: TinyData, base: Path, hosts: Hosts) -> MakeRun:
    """A run of that name, with checkpoints on the hosts' own disks and the rest on storage that both see."""
    root = tmp_path_factory.mktemp("runs")

    def make_run(name: str) -> RunConfig:
        config = linked_run(
            tiny_data,
            root / name,
            base,
            name=name,
            phases=[{"name": "main", "steps": STEPS, "seq_len": 32, "batch_size": 8}],
            checkpoint={"every_steps": EVERY, "local_dir": str(hosts[0].disk_seen), "background": False},
            fault_tolerance={"hang_timeout_s": None},
        )
        parallel = config.parallel.model_copy(update={"process_group_timeout_s": TIMEOUT_S})
        config = config.model_copy(update={"parallel": parallel})
        (root / f"{name}.yaml").write_text(dump_config(config))
        return config

    return make_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_run: MakeRun, hosts: Hosts) -> tuple[RunConfig, list[Save]]:
    """A run that nothing happens to, and what its saves sent."""
    config = make_run("whole")
    meetings = tmp_path_factory.mktemp("meetings")
    return config, run_ranks(count_saves, 4, config, meetings, hosts=hosts, init_group=False)[0]


def start(config: RunConfig, hosts: Hosts, launch: int) -> Job:
    root = config.output_dir.parent
    return start_job(root / f"{config.name}.yaml", 4, root / f"{config.name}.logs", launch, hosts=hosts)


def losses(config: RunConfig) -> list[float]:
    return [record["loss"] for record in read_jsonl(config.output_dir / "metrics.jsonl")]


def steps_on(host: LinkedHost, config: RunConfig) -> list[int]:
    return sorted(step_of(path) for path in list_checkpoints(host.disk / config.name))


def wait_for_step(job: Job, step: int) -> None:
    """Until all ranks have taken it."""
    assert job.wait_until(lambda: len(job.taken_steps()) > step), job.tail()


def last_words(job: Job) -> list[str]:
    """What each rank said at last, one line each."""
    assert not job.wait_until(lambda: False, ENDS_WITHIN_S)  # all have ended
    said = [own_lines(log.read_text()) for log in job.logs]
    assert [len(lines) for lines in said] == [1] * len(said), job.tail()
    return [line for (line,) in said]


def test_a_save_sends_nothing(whole: tuple[RunConfig, list[Save]], hosts: Hosts) -> None:
    config, saves = whole
    assert [save.step for save in saves] == list(range(EVERY, STEPS + 1, EVERY))
    assert [sum(save.sent) < TRAILING for save in saves] == [True] * len(saves), saves
    for host in hosts:
        assert steps_on(host, config)[-1] == STEPS
        newest = host.disk / config.name / f"step-{STEPS:08d}"
        written = sum(file.stat().st_size for file in newest.glob("*.safetensors"))
        assert written > 200 * TRAILING  # each host has a whole copy
    assert list_checkpoints(config.output_dir / "checkpoints") == []


@pytest.mark.chaos
def test_a_cut_link_ends_the_run_and_it_goes_on_to_the_bit(
    make_run: MakeRun, whole: tuple[RunConfig, list[Save]], hosts: Hosts
) -> None:
    config = make_run("cut")
    job = start(config, hosts, 0)
    wait_for_step(job, EVERY + 2)
    hosts[1].cut_link()
    cut_at = time.monotonic()
    try:
        first, second, third, fourth = last_words(job)
    finally:
        hosts[1].mend_link()
    assert time.monotonic() - cut_at < ENDS_WITHIN_S
    for line in (first, second):
        assert "rank 2 on host1" in line
        assert "rank 3 on host1" in line
        assert "gave no answer: lost with the machine, or hanging" in line
    for line in (third, fourth):
        assert "rank 0 on host0" in line
        assert "was lost: it is unreachable" in line
    again = start(config, hosts, 1)
    assert again.wait() == [0] * 4, again.tail()
    assert losses(config) == losses(whole[0])


@pytest.mark.chaos
def test_a_lost_node_is_replaced_by_one_with_an_empty_disk(
    make_run: MakeRun, whole: tuple[RunConfig, list[Save]], hosts: Hosts
) -> None:
    """Its copy is on the other's disk, too."""
    config = make_run("killed")
    job = start(config, hosts, 0)
    wait_for_step(job, EVERY + 2)
    job.signal(signal.SIGKILL, [2, 3])
    assert not job.wait_until(lambda: False, ENDS_WITHIN_S)
    for log in job.logs[:2]:
        (line,) = own_lines(log.read_text())
        assert "on host1" in line
    shutil.rmtree(hosts[1].disk / config.name)
    again = start(config, hosts, 1)
    assert again.wait() == [0] * 4, again.tail()
    began = [note["started_at"] for note in again.taken_steps() if "started_at" in note]
    assert began[0] >= EVERY
    assert losses(config) == losses(whole[0])


def test_what_was_gathered_is_loaded_by_peft(
    tmp_path: Path, whole: tuple[RunConfig, list[Save]], base: Path, hosts: Hosts, commands: Commands
) -> None:
    """From the disk of one host; the other's is gone."""
    config, _ = whole
    away = hosts[0].disk / config.name
    away.rename(tmp_path / "away")
    ssh = write_ssh(tmp_path / "ssh", hosts)
    run, names = str(config.output_dir), ",".join(host.name for host in hosts)
    gathered = commands.start("adapter", "gather", run, "--hosts", names, "--ssh", str(ssh), prepared=True)
    assert gathered.wait() == 0, gathered.output
    assert [step_of(path) for path in list_checkpoints(config.output_dir / "checkpoints")] == [STEPS]
    merged = commands.start("adapter", "merge", run, str(tmp_path / "adapter"), prepared=True)
    assert merged.wait() == 0, merged.output
    assert_peft_says_the_same(base, tmp_path / "adapter", config.output_dir)


def assert_peft_says_the_same(base: Path, adapter: Path, run: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        theirs = peft.PeftModel.from_pretrained(theirs, adapter).eval()
    ids = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids).logits
    assert (load_pretrained(base, dtype=torch.float32).logits(ids) - expected).abs().max() > 1e-2
    # fp32 in another order; logits are compared with the largest.
    tolerance = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close(load_pretrained(run).logits(ids), expected, rtol=1e-4, atol=tolerance)
