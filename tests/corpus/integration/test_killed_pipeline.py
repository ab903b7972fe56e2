"""A small pipeline through the real command: killed at random moments, its bytes are those of a run that was not.

The long form, with the whole example and on clusters, is in tests/chaos.
"""

import json
import random
from pathlib import Path

import pytest

from helpers.corpus_runs import finished_tasks, published, run_to_its_end, run_until_killed

WORDS = [
    "the", "be", "to", "of", "and", "that", "have", "with", "a", "house", "river", "stands", "near", "small", "quickly",
    "garden", "people", "often", "came", "before",
]  # fmt: skip


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Four files of records, some of them double, nearly double, or broken; and a pipeline file."""
    random_ = random.Random(0)
    texts = [" ".join(random_.choices(WORDS, k=random_.randrange(60, 150))) + "." for _ in range(80)]
    for number in range(4):
        lines = [json.dumps({"text": text}) for text in texts[20 * number : 20 * number + 20]]
        lines += [
            json.dumps({"text": texts[number]}),
            json.dumps({"text": texts[number + 40] + " again"}),
            '{"text": 3}',
        ]
        path = tmp_path / "raw" / f"{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"output: unused\nstages:\n"
        f"  - extract: {{inputs: [{{source: r, path: {tmp_path}/raw}}], shard_bytes: 1000}}\n"
        f"  - clean: [normalise, gopher_quality]\n  - exact\n  - minhash\n  - hold_out: {{fraction: 0.1}}\n"
    )
    return file


@pytest.mark.chaos
def test_killed_at_random_moments(pipeline, tmp_path):
    run_to_its_end(pipeline, ["executors.local.workers=1"], tmp_path / "whole")
    total = finished_tasks(tmp_path / "whole")
    random_ = random.Random(1)
    for _ in range(2):
        assert run_until_killed(
            pipeline, ["executors.local.workers=2"], tmp_path / "out", random_.randrange(1, 12), random_
        )
    assert 0 < finished_tasks(tmp_path / "out") < total
    printed = run_to_its_end(pipeline, ["executors.local.workers=2"], tmp_path / "out")
    assert "4 records that could not be read" in printed
    whole = published(tmp_path / "whole")
    assert whole == published(tmp_path / "out")
    assert len(whole) > 8
