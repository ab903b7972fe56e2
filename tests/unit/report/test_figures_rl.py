"""Plots and samples of runs of reinforcement learning."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from glmforge.errors import DataError
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import read_run
from glmforge.report.figures_rl import best_and_worst, reward_figures, step_seconds
from glmforge.report.report import write_report
from helpers.synthetic_run import write_synthetic_run

ALL = ["Reward", "Terms of the reward", "Entropy of the policy", "Divergence from the reference",
       "Gap between engine and trainer", "Clipped and masked tokens", "Groups and answers", "Length of answers",
       "Reward against length", "Seconds of a step"]  # fmt: skip


def record(step: int, **fields: object) -> dict[str, object]:
    given = {"step": step, "tokens": 100 * step, "phase": "rl", "policy": 0.1, "reward": 0.01 * step}
    given |= {"reward_terms": {"verifier": 0.5, "format": 1.0}, "reward_by_source": {"a": 0.1, "b": 0.2}}
    given |= {"entropy": 2.0, "reference_kl": 0.1, "gap_mean": 1e-6, "gap_p99": 1e-5, "gap_max": 1e-4}
    given |= {"clip_share": 0.1, "masked_share": 0.0, "equal_share": 0.3, "answers_cut_share": 0.2, "stale_share": 0.0}
    given |= {"answer_tokens": 20.0, "step_seconds": 10.0, "data_seconds": 7.0, "rollout_seconds": 4.0}
    return given | {"scoring_seconds": 1.0} | fields


def answer(step: int, sample: int, reward: float | None, reply: str = "") -> dict[str, object]:
    facts = {"step": step, "group": 0, "sample": sample, "question": "what?", "reply": reply or f"reply {sample}"}
    facts |= {"prompt": "p", "source": "a", "finished": "stop", "num_tokens": 5 + sample, "reward": reward}
    return facts | {"terms": {"verifier": reward or 0.0}, "advantage": reward, "logprob": -1.0, "versions": [0, 0]}


def write_answers(root: Path, step: int, answers: list[dict[str, object]], share: int = 0) -> None:
    directory = root / "rollouts"
    directory.mkdir(exist_ok=True)
    lines = "".join(json.dumps(one) + "\n" for one in answers)
    (directory / f"step-{step:08d}-{share:05d}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


@pytest.fixture
def rl_run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    root.mkdir()
    (root / "config.yaml").write_text("name: rl\n")
    (root / "run.json").write_text('{"name": "rl"}')
    with JsonlFile(root / "metrics.jsonl") as file:
        for step in range(1, 41):
            file.write(record(step))
    rewards = [0.5, None, 0.9, -1.0, 0.1, 0.2, 0.3, 0.4]
    for step in (39, 40):
        write_answers(root, step, [answer(step, number, reward) for number, reward in enumerate(rewards)])
    best = "</pre><script>x</script>"
    write_answers(root, 40, [answer(40, 8, 2.0, best), answer(40, 9, 2.0, best)], share=1)
    return root


def test_every_figure_is_drawn_once(rl_run: Path) -> None:
    assert [figure.title for figure in reward_figures(read_run(rl_run))] == ALL
    page = write_report(rl_run).read_text(encoding="utf-8")
    assert all(page.count(f"<h3>{title}</h3>") == 1 for title in ALL)
    assert "<script" not in page
    assert "best of step 40, reward 2 (verifier 2), advantage +2, 14 tokens, stopped" in page


def test_a_run_of_another_stage_has_none(tmp_path: Path) -> None:
    run = read_run(write_synthetic_run(tmp_path / "run", num_steps=3, killed_at=None))
    assert reward_figures(run) == []
    assert best_and_worst(run) == []


def test_what_a_run_lacks_is_left_out(rl_run: Path) -> None:
    with JsonlFile(rl_run / "metrics.jsonl") as file:
        file.write({"step": 41, "tokens": 4100, "phase": "rl", "reward": 0.1})
    for path in (rl_run / "rollouts").iterdir():
        path.unlink()
    (rl_run / "rollouts").rmdir()
    assert [figure.title for figure in reward_figures(read_run(rl_run))] == [
        title for title in ALL if title != "Reward against length"
    ]


def test_best_and_worst_of_the_last_step_over_all_ranks(rl_run: Path) -> None:
    shown = best_and_worst(read_run(rl_run))
    assert [one.completion for one in shown[1:]] == ["reply 2", "reply 0", "reply 5", "reply 4", "reply 3"]
    assert [one.note.split()[0] for one in shown] == ["best"] * 3 + ["worst"] * 3


def test_parts_of_a_step_add_up_to_it() -> None:
    records = [record(1), {"step": 2, "step_seconds": 3.0, "data_seconds": 0.1}, record(3, data_seconds=4.0)]
    parts = step_seconds(records)
    assert {name: values.tolist() for name, values in parts.items()} == {
        "rollout": [4, 4], "scoring": [1, 1], "waiting": [2, 0], "training": [3, 6]
    }  # fmt: skip
    assert np.add.reduce(list(parts.values()))[0] == 10


def test_damaged_answers_are_an_error(rl_run: Path) -> None:
    path = rl_run / "rollouts" / "step-00000040-00000.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"{path.name}: damaged"):
        best_and_worst(read_run(rl_run))
