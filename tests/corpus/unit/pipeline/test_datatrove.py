"""Real datatrove steps in our chain, and our blocks in a real datatrove pipeline."""

import numpy as np
import pytest
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

from glmforge.errors import ConfigError, DataError
from glmforge_corpus.pipeline.clean import run_blocks
from glmforge_corpus.pipeline.datatrove import BlockStep, DatatroveBlock, from_documents, to_documents
from glmforge_corpus.pipeline.statistics import Statistics
from helpers.corpus import Shout, batch_of

FILTERS = "datatrove.pipeline.filters"


def test_a_filter_of_theirs():
    block = DatatroveBlock(step=f"{FILTERS}:RegexFilter", options={"regex_exp": "secret"})
    statistics = Statistics()
    kept = run_blocks([block], batch_of(["a secret", "plain", "more secrets", "ünder"]), statistics)
    assert kept.texts == ["plain", "ünder"]
    assert {reason: flow.documents for reason, flow in statistics.removed.items()} == {"RegexFilter: removed": 2}


def test_a_reason_that_a_filter_gives():
    block = DatatroveBlock(step="helpers.datatrove_steps:Lengths", options={"shortest": 2, "longest": 4})
    assert {rule: mask.tolist() for rule, mask in block.process(batch_of(["a", "abc", "abcde"])).failed.items()} == {
        "Lengths: too long": [False, False, True],
        "Lengths: too short": [True, False, False],
    }


def test_a_formatter_of_theirs():
    block = DatatroveBlock(step="datatrove.pipeline.formatters:PIIFormatter")
    outcome = block.process(batch_of(["write to anna@mail.example.org now", "nothing here"]))
    assert outcome.failed == {}
    assert "anna@" not in outcome.batch.texts[0]
    assert outcome.batch.texts[1] == "nothing here"


@pytest.mark.parametrize(
    ("step", "options"),
    [("nowhere:Filter", {}), (f"{FILTERS}:NoFilter", {}), (f"{FILTERS}:RegexFilter", {"wrong": 1}), ("words", {})],
)
def test_a_step_that_cannot_be_made(step, options):
    with pytest.raises(ConfigError, match=r"^datatrove.step: '.*' cannot be created: .*: write it as module:Class"):
        DatatroveBlock(step=step, options=options).process(batch_of(["a"]))


def test_a_step_that_makes_documents_of_its_own(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "new", "id": "n"}\n')
    block = DatatroveBlock(step="datatrove.pipeline.readers:JsonlReader", options={"data_folder": str(tmp_path)})
    with pytest.raises(DataError, match="produces documents itself"):
        block.process(batch_of(["a"]))


def test_a_block_of_ours_in_a_pipeline_of_theirs(tmp_path):
    (tmp_path / "in").mkdir()
    lines = [f'{{"text": "text {i}", "id": "{i}", "metadata": {{"k": {i}}}}}\n' for i in range(10)]
    (tmp_path / "in" / "d.jsonl").write_text("".join(lines))
    steps = [
        JsonlReader(str(tmp_path / "in")),
        BlockStep(Shout(refuse=("3",)), batch_documents=4),
        JsonlWriter(str(tmp_path / "out"), output_filename="o.jsonl", compression=None),
    ]
    LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(tmp_path / "logs")).run()
    read = list(JsonlReader(str(tmp_path / "out")).run())
    assert [document.text for document in read] == [f"TEXT {i}" for i in range(10) if i != 3]
    assert all("loud" in document.metadata and document.metadata["k"] == int(document.id) for document in read)


def test_documents_of_theirs_and_back():
    batch = batch_of(["a", "b"], languages=["en", None], metadata=['{"url": "u"}', None])
    batch = batch.with_score("quality", np.array([0.5, np.nan]))
    documents = to_documents(batch)
    assert documents[0].metadata == {"url": "u", "source": "test", "language": "en", "quality": 0.5}
    assert documents[1].metadata == {"source": "test", "language": None}
    back = from_documents(documents)
    assert (back.ids, back.texts) == (batch.ids, batch.texts)
    assert back.table.column("source").to_pylist() == ["test", "test"]
    assert back.table.column("language").to_pylist() == ["en", None]
