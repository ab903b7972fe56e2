"""What the report shows of texts that the model wrote: those of the last evaluation, and how they were before.

An answer to a held-out prompt stands beside the answer that the conversation has.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog

_MAX_SHOWN, _MAX_EARLIER = 24, 8
_PROMPT_CHARACTERS = 2000
_ENDS = {"stop": "stopped", "length": "cut at max_new_tokens"}


@dataclass(frozen=True)
class Earlier:
    """The text to the same prompt at an earlier evaluation."""

    step: int
    completion: str


@dataclass(frozen=True)
class ShownSample:
    """A completion, set behind its prompt; with a `reference` beside that, and a `note` on how it ended."""

    prompt: str
    completion: str
    reference: str | None = None
    note: str = ""
    earlier: tuple[Earlier, ...] = ()


def shown_samples(run: RunLog) -> tuple[list[ShownSample], int]:
    """The texts of the last evaluation that had some written, some dozen of them, and how many there are in all."""
    by_prompt: dict[tuple[object, ...], list[Record]] = {}
    alike = Counter[tuple[object, ...]]()
    for record in run.samples:
        asked = (record.get("source"), record["prompt"], record.get("reference"), record.get("sample"))
        here = (record["step"], *asked)  # conversations may be alike: then they are distinguished by their order
        by_prompt.setdefault((*asked, alike[here]), []).append(record)
        alike[here] += 1
    last = [records for records in by_prompt.values() if records[-1]["step"] == run.samples[-1]["step"]]
    return [_shown(records) for records in last[:_MAX_SHOWN]], len(last)


def _shown(records: Sequence[Record]) -> ShownSample:
    """What was written to one prompt, evaluation after evaluation."""
    *before, record = records
    prompt = record["prompt"]
    earlier = tuple(Earlier(one["step"], one["completion"]) for one in _spread(before, _MAX_EARLIER))
    if "reference" not in record:
        return ShownSample(prompt, record["completion"], earlier=earlier)
    end = _ENDS.get(record.get("finished", ""), "")
    form = f"malformed: {record['malformed']}" if record.get("malformed") else "well-formed"
    words = (record["source"], f"step {record['step']:,}", end, form)
    return ShownSample(
        f"…{prompt[-_PROMPT_CHARACTERS:]}" if len(prompt) > _PROMPT_CHARACTERS else prompt,
        record["completion"],
        record["reference"],
        ", ".join(filter(None, words)),
        earlier,
    )


def _spread(records: Sequence[Record], number: int) -> list[Record]:
    """At most this many of them, evenly."""
    number = min(number, len(records))
    return [records[index * len(records) // number] for index in range(number)]
