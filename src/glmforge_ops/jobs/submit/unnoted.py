"""Submissions that Slurm has and that nobody noted: who submitted them was killed before.

They are known by their name and by the directory that they were submitted from, which is the job's own.
"""

from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.schedulers.commands import NoAnswerError, ask
from glmforge_ops.jobs.schedulers.slurm_jobs import asking

_NUMBER = 20


def submissions_in(directory: JobDirectory) -> list[str]:
    """Numbers of the jobs and arrays that wait or run, the newest last.

    Raises `LaunchError` if Slurm does not answer: to submit one anew might be to submit it twice.
    """
    form = f"--Format=ArrayJobID:{_NUMBER},WorkDir:4096"
    answer = ask("squeue", "--noheader", "--me", f"--name={directory.name}", form, environment=asking())
    if answer.status:
        raise NoAnswerError(
            f"{directory.name}: whether Slurm has it already is not known (squeue: {answer.reason}); try again"
        )
    found = set[str]()
    for line in answer.stdout.splitlines():
        number, where = line[:_NUMBER].strip(), line[_NUMBER:].strip()
        if where == str(directory.root.absolute()) and number.isdecimal():
            found.add(number)
    return sorted(found, key=int)
