"""A corpus run that is scraped while it runs, from its first task to its end."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.data.app import app
from glmforge.errors import DataError
from glmforge_corpus.pipeline.exporter import CorpusProgress, exporting

PIPELINE = """\
output: {out}
name: text
stages:
  - extract: {{inputs: [{{source: a, path: {out}/../a.jsonl}}, {{source: b, path: {out}/../b.jsonl}}]}}
  - clean: [normalise]
executors: {{local: {{workers: 1}}}}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    for name, number in (("a", 3), ("b", 4)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "text {name}{i}"}}\n' for i in range(number)))
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(out=tmp_path / "out"))
    return file


def test_documents_bytes_and_tasks_of_a_run(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scraped: list[str] = []
    show = CorpusProgress.show

    def show_and_scrape(progress: CorpusProgress, step: Any) -> None:
        show(progress, step)
        [path] = (pipeline.parent / "out/exporter").iterdir()
        target = json.loads(path.read_text())
        assert (target["job"], target["run"], target["stage"]) == ("corpus", "text", "corpus")
        with urllib.request.urlopen(f"http://{target['host']}:{target['port']}/metrics", timeout=60) as answer:
            scraped.append(answer.read().decode())

    monkeypatch.setattr(CorpusProgress, "show", show_and_scrape)
    command = ["run", str(pipeline), "--metrics-port", "0"]
    for _ in range(2):  # the second finds all done
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
        assert not list((pipeline.parent / "out/exporter").iterdir())
        last = scraped[-1]
        assert 'glmforge_corpus_documents_total{stage="extract"} 7.0' in last
        assert 'glmforge_corpus_documents_total{stage="clean"} 7.0' in last
        assert f'glmforge_corpus_bytes_total{{stage="clean"}} {7 * len("text a0")}.0' in last
        assert 'glmforge_corpus_tasks{state="waiting"} 0.0' in last
    assert 'glmforge_corpus_documents_total{stage="extract"} 0.0' in scraped[0]


def test_a_run_that_fails_leaves_a_target_that_is_down(tmp_path: Path) -> None:
    with pytest.raises(DataError), exporting(tmp_path, "text", "127.0.0.1", 0):
        raise DataError("damaged")
    assert len(list((tmp_path / "exporter").iterdir())) == 1
