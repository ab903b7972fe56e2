"""Reports of ranks that hung: what they say, and whom they blame."""

from glmforge_ops.jobs.supervisor.hangs import HangDump, parse_dump, who_hangs

REPORT = """time: 2026-01-01T00:00:00Z
host: node3
pid: 17
rank: 2 of 6
steps done: 40
phase: main
seconds without progress: 60.1
last sign of life: on_step_start

== Python stacks ==
Thread 0x1 (most recent call first):

== unfinished collectives ==
gloo:all_reduce number 17 of group 0 default_pg: started, [[4]] -> [[4]]

== native stacks ==
"""


def test_a_report_of_the_watchdog_is_read() -> None:
    found = parse_dump(REPORT)
    assert found == HangDump(2, 6, 40, {"0 default_pg": ("gloo:all_reduce", 17)})
    assert parse_dump(
        REPORT.replace("gloo:all_reduce number 17 of group 0 default_pg: started, [[4]] -> [[4]]", "none")
    )
    assert parse_dump("nothing of the kind") is None


def test_of_no_reports_nobody_is_blamed() -> None:
    assert who_hangs([]) is None
