"""The companion of a job: what Slurm is asked, and that it vanishes when there is nothing to do."""

from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.job import JobDirectory, Submission
from glmforge_ops.jobs.requeue import companion, queue_again
from glmforge_ops.jobs.requeue.companion import Trigger, accompany, attend, companions, dismiss, look_soon
from glmforge_ops.jobs.requeue.refused_starts import Mend
from glmforge_ops.jobs.schedulers import slurm_small
from helpers.made_jobs import at, made_attempt, made_job
from helpers.scheduler_programs import Answers, scheduler_programs

NO_PROLOG = (0, "Prolog                  = (null)\nSchedulerParameters     = (null)\n", "")
PROLOG = (0, "Prolog                  = /etc/prolog\nSchedulerParameters     = bf_interval=2\n", "")
NO_HOLD = (0, "Prolog                  = /etc/prolog\nSchedulerParameters     = nohold_on_prolog_fail\n", "")
NEWER_NO_PROLOG = (0, "PrologEpilogTimeout     = 65534\nPrologFlags             = (null)\n", "")
NEWER_PROLOG = (0, "Prolog[0]               = /etc/prolog.d/*\nPrologFlags             = Alloc\n", "")
FAILED, PENDING, COMPLETED = ("FAILED", "NonZeroExitCode"), ("PENDING", "Resources"), ("COMPLETED", "None")
HELD = ("PENDING", "launch failed requeued held")

Slurm = Callable[..., Callable[[], list[str]]]


def row_of(state: str, reason: str, restarts: int = 0) -> str:
    return f"{'17':40}{'17':20}{state:24}{restarts:<12}{10:<24}{20:<24}{20:<24}{reason:64}{'':8192}\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Programs of Slurm that say that the job is so; gives what they were called with since, without questions."""
    answers: Answers = scheduler_programs(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(companion, "_LOOK_S", 0.0)
    monkeypatch.setattr(companion, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(queue_again, "_PAUSE_S", 0.0)

    def make(
        job: tuple[str, str] = FAILED,
        config: tuple[int, str, str] = NO_PROLOG,
        **other: dict[str, tuple[int, str, str]],
    ) -> Callable[[], list[str]]:
        row = row_of(*job)
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
    assert line.endswith(f"-m glmforge_ops.jobs.requeue.companion {job.root.absolute()} 17 failure")
    assert companions(job) == {"failure": "30"}


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (PROLOG, ["failure", "hold"]),
        (NEWER_PROLOG, ["failure", "hold"]),
        (NEWER_NO_PROLOG, ["failure"]),
        (NO_HOLD, ["failure"]),
    ],
)
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


def test_a_task_of_an_array_has_none(tmp_path: Path, slurm: Slurm) -> None:
    called = slurm()
    job = made_job(tmp_path, "sweep-003")
    assert accompany(job, Submission(id="12_3", launcher="slurm", time=at(0))) is None
    assert called() == []


def test_the_options_of_the_job_say_who_pays_and_where(tmp_path: Path, slurm: Slurm) -> None:
    called = slurm()
    launch = {"account": "lab", "qos": "long", "partition": "gpu", "supervisor": {"companion_partition": "cpu"}}
    job = made_job(tmp_path, "paid", launch=launch)
    accompany(job, job.read_submissions()[0])
    assert "--partition=cpu --account=lab --qos=long" in called()[0]


def test_a_companion_that_is_refused_is_a_warning(job: JobDirectory, slurm: Slurm) -> None:
    slurm(sbatch={"": (1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n")})
    warning = accompany(job, job.read_submissions()[0]) or ""
    assert "no companion for a start that Slurm refuses: sbatch: QOSMaxSubmitJobPerUserLimit" in warning
    assert job.read_events()[-1]["event"] == "companion refused"
    assert job.read_events()[-1]["detail"] == warning


def test_the_other_kind_is_not_said_to_be_missing(job: JobDirectory, slurm: Slurm) -> None:
    slurm(scontrol={"show config": (1, "", f"{DOWN}\n"), "": (0, "", "")})
    assert (accompany(job, job.read_submissions()[0]) or "").startswith("no companion for a hold of Slurm's: scontrol")
    assert companions(job) == {"failure": "30"}


def full(*_: object, **__: object) -> None:
    raise RunFileError("events.jsonl: cannot be written (No space left on device)")


def test_one_that_cannot_be_noted_is_cancelled(
    job: JobDirectory, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is a warning: the job has been submitted, and runs."""
    called, submission = slurm(), job.read_submissions()[0]
    monkeypatch.setattr(JobDirectory, "event", full)
    assert "No space left" in (accompany(job, submission) or "")
    assert [line for line in called() if not line.startswith("sbatch")] == ["scancel --quiet 30"]


def test_a_job_that_cannot_be_read_is_a_warning(job: JobDirectory, slurm: Slurm) -> None:
    slurm()
    submission = job.read_submissions()[0]
    job.description.write_text("{")
    assert "no companion for a start that Slurm refuses: " in (accompany(job, submission) or "")


def accompanied(job: JobDirectory, kind: str = "failure") -> JobDirectory:
    job.event(companion.COMPANION, submission="17", companion="30", trigger=kind)
    return job


def test_a_refused_start_is_queued_again(job: JobDirectory, slurm: Slurm) -> None:
    """And what waited for its success waits again; the next companion is there."""
    called = slurm(FAILED)
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE
    first, second, third = called()
    assert (first, third) == ("scontrol requeue 17", "scontrol update JobId=21 Dependency=afterok:16:17")
    assert "--dependency=afternotok:17" in second
    assert events(job)[-2:] == ["start refused", companion.COMPANION]


DOWN = "scontrol: error: Unable to contact slurm controller (connect failure)"
BUSY = "slurm_requeue error: Socket timed out on send/recv operation"


@pytest.fixture
def stumbles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a program of Slurm's fail once, for arguments that begin so; `carried_out`: but it is done all the same."""
    monkeypatch.setattr(companion, "_PATIENCE_S", 1e9)

    def make(program: str, start: str, *, says: str = DOWN, carried_out: bool = False) -> None:
        there, marker = tmp_path / "bin" / program, tmp_path / f"{program}-stumbled"
        real, told = there.rename(tmp_path / f"{program}.real"), quote(str(marker))
        do = f'{quote(str(real))} "$@"; ' if carried_out else ""
        there.write_text(
            f'#!/bin/sh\ncase "$*" in {quote(start)}*) '
            f"[ -e {told} ] || {{ : >{told}; {do}echo {quote(says)} >&2; exit 1; }} ;; esac\n"
            f'exec {quote(str(real))} "$@"\n'
        )
        there.chmod(0o755)

    return make


WITHOUT_A_FAULT = ["scontrol requeue 17", "sbatch", "scontrol update JobId=21 Dependency=afterok:16:17"]


@pytest.mark.parametrize(
    ("program", "start", "says"),
    [
        ("scontrol", "requeue", DOWN),
        ("scontrol", "requeue", BUSY),
        ("scontrol", "update", DOWN),
        ("sbatch", "", DOWN),
        ("squeue", "--noheader --me", DOWN),
    ],
)
def test_what_gets_no_answer_is_asked_again_and_nothing_else(
    job: JobDirectory, slurm: Slurm, stumbles: Callable[..., None], program: str, start: str, says: str
) -> None:
    called = slurm(FAILED)
    stumbles(program, start, says=says)
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE
    assert [line if "sbatch" not in line else "sbatch" for line in called()] == WITHOUT_A_FAULT
    assert companions(job) == {"failure": "30"}
    assert events(job).count(companion.COMPANION) == 2


@pytest.mark.parametrize("says", [DOWN, BUSY])
@pytest.mark.parametrize("after", [("PENDING", "BeginTime"), ("RUNNING", "None"), ("FAILED", "NonZeroExitCode")])
def test_a_request_whose_answer_was_lost_is_not_made_twice(
    job: JobDirectory, slurm: Slurm, stumbles: Callable[..., None], tmp_path: Path, after: tuple[str, str], says: str
) -> None:
    """Slurm would refuse it, of a job that waits, or start one anew that has failed again."""
    called = slurm(FAILED)
    stumbles("scontrol", "requeue", says=says, carried_out=True)
    squeue = tmp_path / "bin/squeue"
    real, row = squeue.rename(tmp_path / "squeue.real"), quote(row_of(*after, restarts=1))
    squeue.write_text(
        f'#!/bin/sh\ncase "$*" in *--jobs=17*) [ ! -e {quote(str(tmp_path / "scontrol-stumbled"))} ] || '
        f'{{ printf %s {row}; exit 0; }} ;; esac\nexec {quote(str(real))} "$@"\n'
    )
    squeue.chmod(0o755)
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE
    assert [line if "sbatch" not in line else "sbatch" for line in called()] == WITHOUT_A_FAULT


def test_a_job_that_cannot_be_told_does_not_keep_the_others_from_being_told(job: JobDirectory, slurm: Slurm) -> None:
    waiting = "".join(f"{number:20}{'DependencyNeverSatisfied':40}afterok:17(failed)\n" for number in ("21", "23"))
    row = row_of(*FAILED)
    called = slurm(
        FAILED,
        scontrol={"update JobId=21": (1, "", "Access/permission denied\n"), "": (0, "", "")},
        squeue={"--noheader --me": (0, waiting, ""), "": (0, row, "")},
    )
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE
    assert called()[-1] == "scontrol update JobId=23 Dependency=afterok:17"
    assert events(job)[-2:] == [companion.COMPANION, "waits in vain"]
    assert "21 waits for 17 in vain" in job.read_events()[-1]["detail"]


def test_a_next_companion_that_is_refused_is_noted(job: JobDirectory, slurm: Slurm) -> None:
    """And what waited for the job is told all the same."""
    called = slurm(FAILED, sbatch={"": (1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n")})
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE
    assert called()[-1] == "scontrol update JobId=21 Dependency=afterok:16:17"
    assert events(job)[-1] == "companion refused"


def test_a_controller_that_stays_down_is_an_error(job: JobDirectory, slurm: Slurm) -> None:
    slurm(FAILED, scontrol={"requeue": (1, "", f"{DOWN}\n")})
    with pytest.raises(LaunchError, match="Unable to contact"):
        attend(accompanied(job), "17", "failure", "30")


def test_a_controller_that_is_down_when_it_looks_is_waited_for(
    job: JobDirectory, slurm: Slurm, stumbles: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion, "_LOOK_S", 1e9)
    slurm(FAILED)
    stumbles("squeue", "--noheader --array")
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.REQUEUE


@pytest.mark.parametrize("kind", ["failure", "hold"])
def test_a_controller_that_was_down_all_the_time_is_asked_by_the_next_companion(
    job: JobDirectory, slurm: Slurm, kind: Trigger
) -> None:
    """Later: what has failed already would start another failure companion at once."""
    called = slurm(squeue={"": (1, "", f"{DOWN}\n")})
    assert attend(accompanied(job, kind), "17", kind, "30").do is Mend.LOOK_AGAIN
    (line,) = called()
    assert line.endswith(f"17 {kind}")
    assert "--begin=now+" in line
    assert ("--dependency=afternotok:17" in line) == (kind == "failure")
    assert companions(job) == {kind: "30"}


def test_a_controller_that_is_down_for_long_is_noted(job: JobDirectory, slurm: Slurm) -> None:
    slurm(squeue={"": (1, "", f"{DOWN}\n")}, sbatch={"": (1, "", f"{DOWN}\n")})
    attend(accompanied(job), "17", "failure", "30")
    assert events(job)[-1] == "companion refused"


def test_a_job_that_slurm_has_forgotten_is_not_waited_for(
    job: JobDirectory, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(companion, "_LOOK_S", 1.0)
    slurm(squeue={"": (1, "", "slurm_load_jobs error: Invalid job id specified\n")}, sacct={"": (0, "", "")})
    assert attend(accompanied(job), "17", "failure", "30").do is Mend.NOTHING
    asked = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("squeue")]
    assert len(asked) == 1


def test_its_patience_fits_into_its_time_limit() -> None:
    """Behind it at most a last request of Slurm, a look, a submission, and two requests more."""
    last_s = 30 + 2 * 30 + slurm_small._SUBMIT_LIMIT_S + 2 * 30
    assert companion._LOOK_S < companion._PATIENCE_S
    assert companion._PATIENCE_S + last_s < slurm_small.MINUTES * 60


def test_slurms_hold_is_released(job: JobDirectory, slurm: Slurm) -> None:
    called = slurm(HELD)
    assert attend(accompanied(job, "hold"), "17", "hold", "30").do is Mend.RELEASE
    assert called()[0] == "scontrol release 17"
    assert events(job)[-2:] == ["hold released", companion.COMPANION]


@pytest.mark.parametrize("end", ["cancelled", "by its code", "its Python does not start", "well"])
def test_it_vanishes_when_the_job_has_earned_its_end(job: JobDirectory, slurm: Slurm, end: str) -> None:
    called = slurm(COMPLETED if end == "well" else FAILED)
    if end == "cancelled":
        job.event("cancelled", submission="17")
    elif end == "by its code":
        made_attempt(job, ended=20)
    elif end == "its Python does not start":
        (job.root / ".script-ran-17-0").touch()
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


@pytest.mark.parametrize(("state", "asked"), [(FAILED, "scontrol requeue 17"), (HELD, "scontrol release 17")])
def test_a_full_disk_loses_no_job(
    job: JobDirectory, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, state: tuple[str, str], asked: str
) -> None:
    called = slurm(state)
    accompanied(job)
    monkeypatch.setattr(JobDirectory, "event", full)
    attend(job, "17", "failure", "30")
    assert called()[0] == asked


@pytest.mark.parametrize(("restarts", "do"), [(7, Mend.REQUEUE), (8, Mend.GIVE_UP)])
def test_on_a_full_disk_slurm_counts_the_refused_starts(
    job: JobDirectory, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, restarts: int, do: Mend
) -> None:
    """Since the last in which something ran."""
    called = slurm(squeue={"--noheader --me": (0, "", ""), "": (0, row_of(*FAILED, restarts=restarts), "")})
    made_attempt(accompanied(job), restart=2)
    monkeypatch.setattr(JobDirectory, "event", full)
    found = attend(job, "17", "failure", "30")
    assert found.do is do
    assert ("scontrol requeue 17" in called()) == (do is Mend.REQUEUE)
    assert do is Mend.REQUEUE or "5 refused starts in a row" in found.why


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
