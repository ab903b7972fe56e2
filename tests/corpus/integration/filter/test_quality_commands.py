"""The commands that train classifiers: from files to a model that a block uses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.cli.quality import train_quality, train_toxicity
from glmforge_corpus.filter.linear.classifier import LinearClassifier
from glmforge_corpus.filter.quality import Quality
from glmforge_corpus.filter.toxicity import Toxicity

app = typer.Typer()
app.command()(train_quality)
app.command()(train_toxicity)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> Path:
    directory, random = tmp_path_factory.mktemp("seeds"), np.random.default_rng(0)
    for name in ("good", "bad"):
        words = [f"{name}{n}" for n in range(40)]
        common = [f"word{n}" for n in range(200)]
        with (directory / f"{name}.jsonl").open("w") as file:
            for _ in range(600):
                text = " ".join([*random.choice(words, random.integers(0, 5)), *random.choice(common, 25)])
                file.write(json.dumps({"text": text}) + "\n")
    return directory


def invoke(seeds: Path, out: Path, *more: str) -> "tuple[int, str]":
    files = ["--positive", str(seeds / "good.jsonl"), "--negative", str(seeds / "bad.jsonl"), "--out", str(out)]
    result = CliRunner().invoke(app, ["train-quality", *files, "--bits", "14", *more])
    if result.exception and not isinstance(result.exception, SystemExit):
        return 1, str(result.exception)
    return result.exit_code, result.output


def test_train_quality_prints_figures_and_the_model_works(seeds: Path, tmp_path: Path) -> None:
    status, output = invoke(seeds, tmp_path / "q.npz", "--held-out", "0.2", "--high-precision", "0.9")
    assert status == 0, output
    assert "600 positive, 600 negative" in output
    assert re.search(r"held-out documents, AUC 0\.9\d", output)
    assert "precision" in output
    assert "recall" in output
    model = LinearClassifier.load(tmp_path / "q.npz")
    assert model.fingerprint in output
    assert model.meta["buckets"]["rule"] == {"high_precision": 0.9, "low_recall": 0.95}
    batch = DocumentBatch.from_columns(["a", "b"], ["good1 good2 good3", "bad1 bad2 bad3"], "test")
    outcome = Quality(model=tmp_path / "q.npz", threshold=0.5).process(batch)
    assert outcome.failed["quality: below threshold"].tolist() == [False, True]


def test_the_same_seeds_give_the_same_file_and_another_seed_another(seeds: Path, tmp_path: Path) -> None:
    for name, more in (("a", ()), ("b", ()), ("c", ("--seed", "1"))):
        assert invoke(seeds, tmp_path / name, "--high-precision", "0.8", *more)[0] == 0
    contents = [(tmp_path / name).read_bytes() for name in "abc"]
    assert contents[0] == contents[1] != contents[2]


def test_a_model_is_not_overwritten_unasked(seeds: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.npz"
    out.write_bytes(b"precious")
    status, message = invoke(seeds, out)
    assert status == 1
    assert "already exists" in message
    assert out.read_bytes() == b"precious"
    assert invoke(seeds, out, "--force", "--high-precision", "0.8")[0] == 0


def test_train_toxicity(seeds: Path, tmp_path: Path) -> None:
    files = ["--toxic", str(seeds / "bad.jsonl"), "--harmless", str(seeds / "good.jsonl"), "--out", str(tmp_path / "t")]
    more = ["--bits", "14", "--char-ngram", "4", "--high-precision", "0.8"]
    result = CliRunner().invoke(app, ["train-toxicity", *files, *more])
    assert result.exit_code == 0, result.output
    batch = DocumentBatch.from_columns(["a", "b"], ["good1 good2 good3", "bad1 bad2 bad3"], "test")
    outcome = Toxicity(model=tmp_path / "t", threshold=0.5).process(batch)
    assert outcome.failed["toxicity: classifier"].tolist() == [False, True]


def test_each_side_may_have_a_text_field_of_its_own(seeds: Path, tmp_path: Path) -> None:
    texts = [[json.loads(line)["text"] for line in (seeds / f"{name}.jsonl").open()] for name in ("bad", "good")]
    pairs = [{"chosen": good, "rejected": bad} for bad, good in zip(*texts, strict=True)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    more = ["--bits", "14", "--high-precision", "0.8"]
    same = ["--toxic", str(path), "--harmless", str(path), "--harmless-text-field", "chosen"]
    for out, side in (("a", ["--toxic-text-field", "rejected"]), ("b", ["--text-field", "rejected"])):
        result = CliRunner().invoke(app, ["train-toxicity", *same, *side, "--out", str(tmp_path / out), *more])
        assert result.exit_code == 0, result.output
    apart = ["--toxic", str(seeds / "bad.jsonl"), "--harmless", str(seeds / "good.jsonl")]
    assert CliRunner().invoke(app, ["train-toxicity", *apart, "--out", str(tmp_path / "c"), *more]).exit_code == 0
    contents = [(tmp_path / name).read_bytes() for name in "abc"]
    assert contents[0] == contents[1] == contents[2]


def test_records_that_cannot_be_read_stop_the_training_or_are_left_out(seeds: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "good\n')
    more = ["--positive", str(broken), "--high-precision", "0.8"]
    status, message = invoke(seeds, tmp_path / "q.npz", *more)
    assert status == 1
    assert "broken.jsonl, line 1: not JSON" in message
    assert "--on-error skip" in message
    assert not (tmp_path / "q.npz").exists()
    status, output = invoke(seeds, tmp_path / "q.npz", *more, "--on-error", "skip")
    assert status == 0, output
    assert "skipped 1 unreadable record" in output
    assert "--on-error" not in output, "it is given already"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["--toxic", "good", "--harmless", "good"],
            "toxic seeds: no documents remain: 600 texts are in both the toxic and ",
        ),
        (
            ["--toxic", "bad", "--harmless", "bad", "--harmless", "good"],
            "toxic seeds: no documents remain: 600 texts are in both",
        ),
        (["--toxic", "bad", "--harmless", "few"], "harmless seeds: 3 different documents leave 0 in the smallest"),
    ],
)
def test_seeds_that_leave_nothing_to_learn_are_told(
    seeds: Path, tmp_path: Path, files: list[str], message: str
) -> None:
    (tmp_path / "few.jsonl").write_text("".join(json.dumps({"text": f"few {n}"}) + "\n" for n in range(3)))
    places = {"few": tmp_path}
    named = [f if f.startswith("--") else str(places.get(f, seeds) / f"{f}.jsonl") for f in files]
    result = CliRunner().invoke(app, ["train-toxicity", *named, "--out", str(tmp_path / "t")])
    assert isinstance(result.exception, DataError)
    assert message in str(result.exception)


@pytest.mark.parametrize(("out", "message"), [("file/q.npz", "is a file"), (".", "is a directory")])
def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, out: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    status, error = invoke(tmp_path, tmp_path / out, "--force")  # the seeds are not there, and not yet looked for
    assert status == 1
    assert message in error
