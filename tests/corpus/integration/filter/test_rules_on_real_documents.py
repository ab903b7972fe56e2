"""Decisions on real documents: those of datatrove's filters with the same words; skipped where the data is absent."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from glmforge.data.documents.batch import BatchWriter
from glmforge_corpus.filter.rules.c4 import C4
from glmforge_corpus.filter.rules.fineweb import FineWeb
from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition
from glmforge_corpus.pipeline.clean import Clean
from glmforge_corpus.pipeline.stage import StageContext
from glmforge_corpus.pipeline.task import PlannedStep, run_task
from helpers.rule_texts import batch_of, datatrove_tokeniser, failed_rules, random_text

DOCUMENTS = Path(__file__).parents[5] / "shared" / "data" / "text" / "debian-docs-multilingual.jsonl.zst"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    if not DOCUMENTS.is_file():
        pytest.skip(f"{DOCUMENTS} is absent")
    orjson, zstandard = pytest.importorskip("orjson"), pytest.importorskip("zstandard")
    with zstandard.open(DOCUMENTS, "rt", encoding="utf-8") as file:
        lines = islice(file, 0, None, 97)
        return [text for line in lines if len(text := orjson.loads(line)["text"]) < 30_000]


@pytest.mark.parametrize(
    ("block", "theirs"),
    [
        (GopherQuality, "GopherQualityFilter"),
        (GopherRepetition, "GopherRepetitionFilter"),
        (C4, "C4QualityFilter"),
        (FineWeb, "FineWebQualityFilter"),
    ],
)
def test_decisions_are_datatroves(block: type, theirs: str, texts: list[str]) -> None:
    filters = pytest.importorskip("datatrove.pipeline.filters")
    from datatrove.data import Document

    their_filter = getattr(filters, theirs)(language=datatrove_tokeniser())
    ours = [not rules for rules in failed_rules(block().process(batch_of(texts)))]
    assert ours == [their_filter.filter(Document(text=text, id="")) is True for text in texts]


def test_a_stage_counts_each_rule_and_loses_no_document(tmp_path: Path) -> None:
    batch = batch_of([random_text(seed) or " " for seed in range(300)], "en")
    with BatchWriter(tmp_path / "in.parquet") as writer:
        writer.write(batch)
    stage = Clean(blocks=(GopherRepetition(), GopherQuality(), C4(), FineWeb()))
    (step,) = stage.steps(StageContext(tmp_path / "stage", [tmp_path / "in.parquet"]))
    planned = PlannedStep(step, tmp_path / "stage", "fingerprint")
    run_task(planned, 0)
    statistics = planned.statistics(0)
    assert statistics.read.documents == 300
    assert statistics.written.documents + sum(flow.documents for flow in statistics.removed.values()) == 300
    direct = GopherRepetition().process(batch)
    for rule, failed in direct.failed.items():
        assert statistics.failed[rule] == int(np.sum(failed))
