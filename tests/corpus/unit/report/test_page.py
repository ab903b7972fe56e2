"""The page of a corpus report says what the report says."""

from glmforge_corpus.pipeline.clean import Clean
from glmforge_corpus.pipeline.pipeline import Pipeline
from glmforge_corpus.pipeline.run import run_pipeline
from glmforge_corpus.report.page import write_corpus_page
from helpers.corpus import Numbers, Shout


def test_a_page(tmp_path):
    stages = (Numbers(), Clean(blocks=(Shout(refuse=("3", "number 0/4")),)))
    settings = {"output": tmp_path, "name": "small <corpus>", "stages": stages, "executors": {"local": {"workers": 1}}}
    report = run_pipeline(Pipeline.model_validate(settings, strict=False))
    page = write_corpus_page(report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>small &lt;corpus&gt;</h1>" in page
    for text in ("numbers → clean", "shout: ends in 3", "no number", "THIS IS NUMBER 1/3", "Score: loud", "shouts"):
        assert text in page, text
    assert page.count("<svg") == 4, "what is left, lengths, languages, one score"
    assert "number 0/4" in page, "a rule that nothing fails stands in the pipeline"
    assert "Quarantine" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_corpus_of_nothing(tmp_path):
    stages = (Numbers(documents=0), Clean(blocks=(Shout(),)))
    settings = {"output": tmp_path, "stages": stages, "executors": {"local": {"workers": 1}}}
    report = run_pipeline(Pipeline.model_validate(settings, strict=False))
    page = write_corpus_page(report, tmp_path / "report.html")
    assert "<h1>corpus</h1>" in page.read_text(encoding="utf-8")
