"""The companion of a job: what Slurm is asked, and that it vanishes when there is nothing to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.launch import companion
from glmforge.launch.companion import accompany, attend, companions, dismiss, look_soon
from glmforge.launch.job import JobDirectory, Submission
from glmforge.launch.starts import Mend
from helpers.made_jobs import at, made_attempt, made_job
from helpers.scheduler_programs import Answers, scheduler_programs

NO_PROLOG = (0, "Prolog                  = (null)\nSchedulerParameters     = (null)\n", "")
PROLOG = (0, "Prolog                  = /etc/prolog\nSchedulerParameters     = bf_interval=2\n", "")
NO_HOLD = (0, "Prolog                  = /etc/prolog\nSchedulerParameters     = nohold_on_prolog_fail\n", "")
FAILED, PENDING, COMPLETED = ("FAILED", "NonZeroExitCode"), ("PENDING", "Resources"), ("COMPLETED", "None")
HELD = ("PENDING", "launch failed requeued held")

Slurm = Callable[..., Callable[[], list[str]]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Programs of Slurm that say that the job is so; gives what they were called with since, without questions."""
    answers: Answers = scheduler_programs(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(companion, "_LOOK_S", 0.0)
    monkeypatch.setattr(companion, "_PATIENCE_S", 0.0)

    def make(
        job: tuple[str, str] = FAILED,
        config: tuple[int, str, str] = NO_PROLOG,
        **other: dict[str, tuple[int, str, str]],
    ) -> Callable[[], list[str]]:
        state, reason = job
        row = f"{'17':40}{'17':20}{state:24}{0:<12}{10:<24}{20:<24}{20:<24}{reason:64}{'':8192}\n"
        waiting = (
            f"{'21':20}{'DependencyNeverSatisfied':40}afterok:16:17(failed)\n{'22':20}{'Dependency':40}afterok:9\n"
        )
        known = {
            "sbatch": {"": (0, "30\n", "")},
            "scancel": {"": (0, "", "")},
            "scontrol": {"show config": config, "": (0, "", "")},
            "squeue": {"--noheader --me": (0, waiting, ""), "": (0, row, "")},
        }
        calls = answers(**(known | other))

        def called() -> list[str]:
            lines = calls.read_text().splitlines() if calls.exists() else []
            return [line for line in lines if not line.startswith(("squeue", "scontrol show"))]

        return called

    return make


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    job = made_job(tmp_path)
    job.event("submitted", submission="17")
    return job


def events(job: JobDirectory) -> list[str]:
    return [event["event"] for event in job.read_events()]


def test_one_waits_for_a_failure(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm()
    assert accompany(job, job.read_submissions()[0]) is None
    (line,) = called()
    assert "--dependency=afternotok:17 --kill-on-invalid-dep=yes" in line
    assert "--job-name=air.companion --nodes=1 --ntasks=1" in line
    assert line.endswith(f"-m glmforge.launch.companion {job.root.absolute()} 17 failure")
    assert companions(job) == {"failure": "30"}


@pytest.mark.parametrize(("config", "kinds"), [(PROLOG, ["failure", "hold"]), (NO_HOLD, ["failure"])])
def test_one_looks_now_and_then_where_a_prolog_may_hold_the_job(
    job: JobDirectory, slurm: Slurm, config: tuple[int, str, str], kinds: list[str]
) -> None:
    called = slurm(config=config)
    accompany(job, job.read_submissions()[0])
    assert [line.rpartition(" ")[2] for line in called()] == kinds
    assert ("--begin=now+600" in called()[-1]) == ("hold" in kinds)


@pytest.mark.parametrize(
    "launch",
    [{"requeue": False}, {"supervise": False}, {"array": "0-3"}, {"supervisor": {"refused_starts": 0}},
     {"launcher": "pbs"}],
)  # fmt: skip
def test_a_job_that_is_not_to_come_back_has_none(tmp_path: Path, slurm: Slurm, launch: dict[str, object]) -> None:
    called = slurm()
    job = made_job(tmp_path, "alone", launch=launch)
    assert accompany(job, job.read_submissions()[0]) is None
    assert called() == []


def test_the_options_of_the_job_say_who_pays_and_where(tmp_path: Path, slurm: Slurm) -> None:
    called = slurm()
    launch = {"account": "lab", "qos": "long", "partition": "gpu", "supervisor": {"companion_partition": "cpu"}}
    job = made_job(tmp_path, "paid", launch=launch)
    accompany(job, job.read_submissions()[0])
    assert "--partition=cpu --account=lab --qos=long" in called()[0]


def test_a_companion_that_is_refused_is_a_warning(job: JobDirectory, slurm: Slurm) -> None:
    slurm(sbatch={"": (1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n")})
    assert "no companion: sbatch: QOSMaxSubmitJobPerUserLimit" in (accompany(job, job.read_submissions()[0]) or "")
    assert events(job)[-1] == "companion refused"


def accompanied(job: JobDirectory, kind: str = "failure") -> JobDirectory:
    job.event(companion.COMPANION, submission="17", companion="30", trigger=kind)
    return job


def test_a_refused_start_is_queued_again(job: JobDirectory, slurm: Slurm) -> None:
    """And what waited for its success waits again; the next companion is there."""
    called = slurm(FAILED)
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE
    assert called()[:2] == ["scontrol requeue 17", "scontrol update JobId=21 Dependency=afterok:16:17"]
    assert "--dependency=afternotok:17" in called()[2]
    assert events(job)[-2:] == ["start refused", companion.COMPANION]


def test_slurms_hold_is_released(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm(HELD)
    assert attend(accompanied(job, "hold"), "17", "hold", "30").do is Mend.RELEASE
    assert called()[0] == "scontrol release 17"
    assert events(job)[-2:] == ["hold released", companion.COMPANION]


@pytest.mark.parametrize("end", ["cancelled", "by its code", "well"])
def test_it_vanishes_when_the_job_has_earned_its_end(job: JobDirectory, slurm: Slurm, end: str) -> None:
    called = slurm(COMPLETED if end == "well" else FAILED)
    if end == "cancelled":
        job.event("cancelled", submission="17")
    elif end == "by its code":
        made_attempt(job, ended=20)
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.NOTHING
    assert called() == []


def test_it_vanishes_when_another_has_taken_over(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm(FAILED)
    accompanied(job)
    assert attend(job, "17", "failure", "29").do is Mend.NOTHING
    job.event("submitted", submission="18")
    job.add_submission(Submission(id="18", launcher="slurm", time=at(9)))
    assert attend(job, "17", "failure", "30").do is Mend.NOTHING
    assert called() == []


def test_it_looks_again_ever_less_often_at_a_job_that_waits(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm(PENDING)
    for _ in range(4):
        attend(accompanied(job, "hold"), "17", "hold", "30")
    found = [line.partition("--begin=now+")[2].partition(" ")[0] for line in called()]
    assert found == ["1200", "3600", "3600", "3600"]


def test_it_gives_up(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm(FAILED)
    for _ in range(5):
        job.event("start refused", submission="17")
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.GIVE_UP
    assert called() == []
    assert events(job)[-1] == "given up"
    assert "glmforge jobs resubmit air" in job.read_events()[-1]["detail"]


def test_a_job_that_slurm_has_forgotten_meanwhile_gets_another_number(job: JobDirectory, slurm: Slurm) -> None:
    forgotten = (1, "", "slurm_update error: Invalid job id specified\n")
    called = slurm(FAILED, scontrol={"show config": NO_PROLOG, "requeue": forgotten})
    job.script.write_text("exit\n")
    attend(accompanied(job), "17", "failure", "30")
    assert job.read_submissions()[-1].again
    assert [line.split()[0] for line in called()] == ["scontrol", "sbatch", "sbatch"]
    assert "afternotok:30" in called()[-1]


def test_what_slurm_refuses_is_an_error(job: JobDirectory, slurm: Slurm) -> None:
    slurm(HELD, scontrol={"release": (1, "", "Access/permission denied\n")})
    with pytest.raises(LaunchError, match="permission denied"):
        attend(accompanied(job, "hold"), "17", "hold", "30")


def test_the_supervisor_sends_it_away_or_hastens_it(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm()
    look_soon(job)
    dismiss(job)
    assert called() == []
    accompanied(job, "hold")
    look_soon(job)
    dismiss(job)
    assert called() == ["scontrol update JobId=30 StartTime=now+600", "scancel --quiet 30"]
