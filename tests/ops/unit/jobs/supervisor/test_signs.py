"""What the last words of a rank say: the line that tells, its place, and what of it comes again from start to start."""

import pytest

from glmforge_ops.jobs.supervisor.signs import Kind, read_words, signature, who_was_lost

LOST = "glmforge: rank 2 on b (process 4711) was lost: it ended without a word; rank 0 on a ends with it. Start again"
FAILED_FIRST = "glmforge: rank 3 on b (process 99, Slurm job 7) failed first: KeyError: 'k'; rank 0 on a ends with it."
NO_ANSWER = "glmforge: rank 4 on c (process 8), rank 5 on c (process 9) gave no answer: lost with the machine"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[rank3]: ValueError: bad", "[rank0]: ValueError: bad"),
        ("RuntimeError: object at 0x7f00 of rank 3", "RuntimeError: object at 0x7fee of rank 11"),
        ("OSError: a (pid 17) at 10.0.0.1:2222", "OSError: a (pid 4) at 10.0.0.2:999"),
        ("TimeoutError: after 12.5 s on node17.cluster", "TimeoutError: after 12.9 s on node4"),
        ("KeyError: '/tmp/abc12/x'", "KeyError: '/tmp/def34/y'"),
        ("OSError: cannot listen on port 29500", "OSError: cannot listen on port 20017"),
    ],
)
def test_what_differs_from_start_to_start_is_no_difference(one: str, other: str) -> None:
    hosts = {"node17.cluster", "node4"}
    assert signature(read_words([one]).line, hosts) == signature(read_words([other]).line, hosts) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("IndexError: index 7 is out of range", "IndexError: index 9 is out of range"),
        ("KeyError: 'a'", "KeyError: 'b'"),
    ],
)
def test_what_belongs_to_the_error_is_one(one: str, other: str) -> None:
    assert signature(read_words([one]).line) != signature(read_words([other]).line)


def test_a_line_of_ours_says_more_than_an_exception_behind_it() -> None:
    assert read_words(["glmforge: /runs/a: is full", "KeyError: 'x'"]).line == "glmforge: /runs/a: is full"


def test_what_was_a_warning_when_it_was_said_is_no_reason_for_the_end() -> None:
    """Nor are the lines that it goes on in; after it the program went on."""
    warned = [
        "WARNING  /r/checkpoints/step-00000245 is incomplete and is skipped:",
        "         /r/checkpoints/step-00000245/__0_0.distcp: SHA-256 differs from manifest.json: it is damaged",
        "INFO     the disk was full: no space left on device, tried again",
    ]
    assert read_words(warned).kind is Kind.NOTHING
    assert read_words([*warned, "OSError: [Errno 5] Input/output error", *warned]).meaning == "storage fails"
    assert read_words(["ERROR    /r/checkpoints/step-00000245: is damaged"]).kind is Kind.STORAGE
    assert read_words([*warned, "WARNING NVRM: Xid 79, GPU has fallen off the bus"]).kind is Kind.MACHINE
    assert read_words(["[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of ranks: 1"]).kind is Kind.NOTHING
    assert read_words(["         no space left on device"]).kind is Kind.STORAGE  # of nothing that was a remark


def test_the_last_of_several_that_were_lost_is_named() -> None:
    assert who_was_lost([LOST, FAILED_FIRST]) == (3, "b")


def test_a_host_whose_name_begins_another_ones() -> None:
    words = read_words(["OSError: no route to node17.cluster"])
    assert signature(words.line, {"node17", "node17.cluster"}) == "OSError: no route to <host>"


def test_who_was_lost() -> None:
    named = [who_was_lost([line]) for line in (LOST, FAILED_FIRST, NO_ANSWER, "KeyError")]
    assert named == [(2, "b"), (3, "b"), (4, "c"), None]
