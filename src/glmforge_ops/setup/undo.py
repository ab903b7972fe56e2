"""Take back what setups of a cluster have changed, the last change first; what others changed since stays, named."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from glmforge_ops.setup.ask import Asker, Failure, here
from glmforge_ops.setup.journal import Entry, Journal, is_here


@dataclass
class Undone:
    """How undoing went: numbers of changes, what was refused and why, and machines that did not answer."""

    num_undone: int = 0
    refused: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not (self.refused or self.failures)


def undo(journal: Journal, asker: Asker, progress: Callable[[int, int], None] = lambda done, total: None) -> Undone:
    """Everything in the journal, which goes too if nothing is left of it.

    Where a machine does not answer, what was changed on this one before stays: keys and known hosts are needed to
    undo the rest later.
    """
    result = Undone()
    for local, group in groupby(journal.open_entries, is_here):
        entries = list(group)
        if result.failures:
            result.kept += [entry.change["path"] for entry in entries if local]
            continue
        if local:
            _settle(journal, entries, here(_request(entries))["undo"], result)
        else:
            _undo_on_nodes(journal, entries, asker, result, progress)
    if result.is_whole:
        journal.remove()
    return result


def _undo_on_nodes(
    journal: Journal, entries: list[Entry], asker: Asker, result: Undone, progress: Callable[[int, int], None]
) -> None:
    of_host: dict[str, list[Entry]] = {}
    for entry in entries:
        of_host.setdefault(entry.host, []).append(entry)
    answers, failures = asker.ask({host: _request(of_host[host]) for host in of_host}, progress)
    result.failures += failures
    for host, answer in answers.items():
        _settle(journal, of_host[host], answer["undo"], result)


def _request(entries: list[Entry]) -> dict[str, object]:
    return {"undo": [[entry.change, entry.before] for entry in entries]}


def _settle(journal: Journal, entries: list[Entry], said: list[str], result: Undone) -> None:
    went_well = [entry for entry, reason in zip(entries, said, strict=True) if not reason]
    journal.settle("undone", went_well)
    result.num_undone += len(went_well)
    for entry, reason in zip(entries, said, strict=True):
        if reason:
            result.refused.append(f"{entry.host}: {reason}" if entry.host else reason)
