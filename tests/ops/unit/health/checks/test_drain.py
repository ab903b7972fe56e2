"""What is told to Slurm of a node that fails, and of one that passes again."""

import pytest

from glmforge_ops.health.checks import drain
from glmforge_ops.health.checks.check import failed, passed, warning
from glmforge_ops.health.checks.examine import Findings

# As scontrol of Slurm 22.05 writes it, shortened.
NODE = """NodeName=node1 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=2.10
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=main
{reason}"""
FULL = drain.MARK + "disk.space: 2 % free"


class Slurm:
    def __init__(self, state: str, reason: str = "") -> None:
        self.text = NODE.format(
            state=state, reason=f"   Reason={reason} [root@2026-01-01T00:00:00]\n" if reason else ""
        )
        self.updates: list[tuple[str, ...]] = []

    def ask(self, *command: str) -> str:
        if command[1] == "show":
            return self.text
        self.updates.append(command[3:])
        return ""


@pytest.mark.parametrize(
    ("state", "given", "reason", "updates"),
    [
        ("IDLE", "", None, []),
        ("IDLE", "", FULL, [("state=drain", f"reason={FULL}")]),
        ("MIXED", "", FULL, [("state=drain", f"reason={FULL}")]),
        ("IDLE+DRAIN", FULL, FULL, []),
        ("IDLE+DRAIN", drain.MARK + "disk.local: gone", FULL, [(f"reason={FULL}",)]),
        ("IDLE+DRAIN", FULL, None, [("state=resume",)]),
        ("IDLE+DRAIN", "bad DIMM, ask Ann", None, []),
        ("IDLE+DRAIN", "bad DIMM, ask Ann", FULL, []),
        ("DOWN*", "Not responding", FULL, []),
        ("DOWN*", "Not responding", None, []),
        ("IDLE", FULL, None, []),  # resumed by a person; Slurm keeps the reason
    ],
)
def test_only_what_was_drained_here_is_resumed(
    monkeypatch: pytest.MonkeyPatch, state: str, given: str, reason: str | None, updates: list[tuple[str, ...]]
) -> None:
    slurm = Slurm(state, given)
    monkeypatch.setattr(drain, "ask_slurm", slurm.ask)
    drain.apply_to_node(reason, "node1")
    assert slurm.updates == updates


def test_the_reason_is_one_plain_line() -> None:
    findings = Findings(["a"])
    findings.outcomes = {"a.good": {"a": passed("fine")}, "a.odd": {"a": warning("odd", "", "look")}}
    assert drain.reason_of(findings) is None
    findings.outcomes["b.bad"] = {"a": failed("2 % free\n$(reboot) 'x'" + "y" * 500, "5 %", "clean")}
    findings.outcomes["c.bad"] = {"a": failed("other", "", "fix")}
    reason = drain.reason_of(findings)
    assert reason is not None
    assert reason.startswith(drain.MARK + "b.bad: 2 % free??(reboot) ?x?yyy")
    assert reason.endswith(" (and 1 more)")
    assert len(reason) <= 200
