"""Overfitting is found in made-up curves that have it, and not in those that have not."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.observe.run import RunDirectory, RunLog, read_run
from glmforge.report.export_logs import export_logs
from glmforge.report.overfitting import Verdict, advice, find_overfitting
from glmforge.report.report import write_report
from helpers.synthetic_run import write_synthetic_run

Curve = Callable[[float], float]
EVERY, NUM_STEPS = 50, 1000


def falling(step: float) -> float:
    return 1.2 + 1.5 * np.exp(-step / 200)


def overfitted(step: float) -> float:
    """Lowest at step 412."""
    return falling(step) + 0.0000012 * step**2


def made_up(
    training: Curve,
    held_out: Curve,
    *,
    noise: float = 0.01,
    seed: int = 0,
    num_steps: int = NUM_STEPS,
    names: tuple[str, str] = ("train", "held_out"),
    epochs: float = 3.0,
    root: Path = Path("run"),
) -> RunLog:
    """A run of one training source and one held-out source; batches are ten times as noisy as evaluations."""
    rng = np.random.default_rng(seed)
    metrics = [
        {
            "step": step,
            "tokens": 100 * step,
            "loss": 9.0,
            "source_loss": {names[0]: training(step) + rng.normal(0, 10 * noise)},
            "source_epochs": {names[0]: epochs * step / num_steps},
        }
        for step in range(1, num_steps + 1)
    ]
    if names[0] != names[1]:
        metrics = [record | {"loss": record["source_loss"][names[0]]} for record in metrics]  # type: ignore[index]
    evaluations = [
        {"step": step, "tokens": 100 * step, "source": names[1], "nll": held_out(step) + rng.normal(0, noise)}
        for step in range(EVERY, num_steps + 1, EVERY)
    ]
    return RunLog(RunDirectory(root), {}, "", {}, metrics, evaluations, [])


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
def test_what_rises_beyond_noise_is_found(noise: float) -> None:
    for seed in range(20):
        (finding,) = find_overfitting(made_up(falling, overfitted, noise=noise, seed=seed))
        assert finding.verdict is Verdict.OVERFITS
        # The curve rises by 2.5 standard deviations within sqrt(5 noise / 7.2e-6) steps of its lowest point.
        assert finding.steps[finding.lowest] == pytest.approx(412, abs=EVERY + (5 * noise / 7.2e-6) ** 0.5)
        # The median of 25 batches, each ten times as noisy, and the curve's slope over half of them.
        assert finding.gaps[-1] == pytest.approx(1.2, abs=10 * noise + 0.01)


@pytest.mark.parametrize(
    ("held_out", "what"),
    [
        (lambda step: falling(step) + 0.3, "a gap that stays"),
        (lambda step: 0.5 * falling(step) + 1, "a gap that widens while held-out loss falls"),
        (lambda step: 1.5, "nothing but noise"),
    ],
)
def test_what_does_not_rise_is_no_sign(held_out: Curve, what: str) -> None:
    for seed in range(20):
        run = made_up(falling, held_out, seed=seed)
        assert [finding.verdict for finding in find_overfitting(run)] == [Verdict.NO], what
        assert advice(run, find_overfitting(run)) == []


def test_one_bad_evaluation_is_no_sign() -> None:
    run = made_up(falling, falling)
    run.evaluations[-1]["nll"] += 1
    assert find_overfitting(run)[0].verdict is Verdict.NO


def test_a_run_whose_training_loss_rises_too_is_unstable() -> None:
    run = made_up(overfitted, overfitted)
    (finding,) = find_overfitting(run)
    assert finding.verdict is Verdict.BOTH_RISE
    assert "the run is unstable or has moved on to other text, which is" in advice(run, [finding])[0]


def test_a_source_is_compared_with_that_of_its_name() -> None:
    """The loss of all is 9 here."""
    (own,) = find_overfitting(made_up(falling, falling, names=("web", "web"), noise=0))
    assert own.gaps[-1] == pytest.approx(0, abs=0.01)
    run = made_up(falling, falling, names=("web", "web"), noise=0)
    for record in run.evaluations:
        record["source"] = "other"
    assert find_overfitting(run)[0].gaps[-1] == pytest.approx(falling(NUM_STEPS) - 9, abs=0.01)


def test_few_evaluations_and_none() -> None:
    (finding,) = find_overfitting(made_up(falling, overfitted, num_steps=4 * EVERY))
    assert finding.verdict is Verdict.TOO_FEW
    run = made_up(falling, falling)
    assert find_overfitting(RunLog(run.directory, {}, "", {}, run.metrics, [], [])) == []
    run.evaluations[3]["nll"] = float("nan")
    assert len(find_overfitting(run)[0].steps) == NUM_STEPS // EVERY - 1


def test_advice_tells_where_the_weights_are_and_what_to_change(tmp_path: Path) -> None:
    run = made_up(falling, overfitted, root=tmp_path, noise=0)
    findings = find_overfitting(run)
    assert "retrain for that many steps" in advice(run, findings)[0]
    for step in (200, 400, 800):
        (run.directory.checkpoints / f"step-{step:08d}").mkdir(parents=True)
    weights, passes, stopping = advice(run, findings)
    assert f"the nearest checkpoint is that of step 400 ({tmp_path}@400)" in weights
    assert "By then train had been read 1.2 times: stop there (epochs of the phase, max_epochs" in passes
    assert "observe.early_stopping" in stopping
    narrow = made_up(falling, overfitted, epochs=0.5)
    assert "it is not repetition" in advice(narrow, findings)[1]


def write(root: Path) -> Path:
    """A synthetic run whose held-out text 'code' is overfitted."""
    write_synthetic_run(root, num_steps=NUM_STEPS, killed_at=None, evaluate=False)
    run = made_up(falling, lambda step: overfitted(step) + 1)
    with (root / "evaluation.jsonl").open("w") as file:
        for record in run.evaluations:
            file.write(json.dumps(record | {"source": "[code]"}) + "\n")
    return root


def test_the_terminal_and_the_page_say_the_same(tmp_path: Path) -> None:
    root = write(tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(root), "--overfitting"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "[code]" in result.output
    assert "overfits" in result.output
    said = " ".join(result.output.split())
    assert not (root / "report.html").exists()
    page = write_report(root).read_text()
    for sentence in advice(read_run(root), find_overfitting(read_run(root))):
        assert sentence in said
        assert sentence in page
    assert "from there on the run overfits" in page


def test_a_run_without_evaluations_says_so(tmp_path: Path) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=20, killed_at=None, evaluate=False)
    result = CliRunner().invoke(app, ["report", str(root), "--overfitting"])
    assert "set observe.evaluate_every" in result.output


def test_logs_under_other_names(tmp_path: Path) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=200, killed_at=None)
    result = CliRunner().invoke(app, ["report", str(root), "--export-logs", str(tmp_path / "logs")])
    assert result.exit_code == 0, result.output
    train, held_out, experts = (
        [json.loads(line) for line in (tmp_path / "logs" / name).read_text().splitlines()]
        for name in ("train_log.jsonl", "eval_log.jsonl", "expert_usage.jsonl")
    )
    run = read_run(root)
    assert [record["loss"] for record in train] == [record["loss"] for record in run.metrics]
    assert train[-1].keys() == {
        *("step", "epoch", "loss", "learning_rate", "grad_norm", "tokens_per_second", "seconds_per_step"),
        *("tokens", "samples"),
    }
    # web: 600,000 tokens in 0.4 epochs, books: 200,000 in 2.
    assert train[-1]["epoch"] == pytest.approx(800_000 / (1_500_000 + 100_000))
    last = held_out[-1]
    assert (last["step"], last["source"]) == (200, "prose")
    assert last["perplexity"] == pytest.approx(np.exp(last["eval_loss"]))
    assert last["epoch"] == train[-1]["epoch"]
    assert "epoch" not in held_out[0], "nothing was trained before step 0"
    assert len(experts) == 2 * 8 * 32  # records with all loads, routers, experts
    assert {line["layer"] for line in experts} == set(range(1, 9))
    of_layer = [line["share"] for line in experts if (line["step"], line["layer"]) == (200, 3)]
    assert of_layer == run.metrics[-1]["expert_load"][2]
    assert export_logs(run, tmp_path / "logs")  # in the place of the first
    assert len((tmp_path / "logs" / "train_log.jsonl").read_text().splitlines()) == 200


def test_numbers_that_are_none_are_written_as_in_the_runs_own_records(tmp_path: Path) -> None:
    run = made_up(falling, falling, num_steps=2 * EVERY)
    run.evaluations[0]["nll"] = float("nan")
    run.evaluations[1]["nll"] = 1000.0
    written = export_logs(run, tmp_path)
    assert [path.name for path in written] == ["train_log.jsonl", "eval_log.jsonl"]
    lines = [json.loads(line) for line in (tmp_path / "eval_log.jsonl").read_text().splitlines()]
    assert [line["perplexity"] for line in lines] == ["NaN", "Infinity"]
