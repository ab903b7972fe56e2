import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import JsonlFile, RunFileError
from glmforge.observe.run import RunDirectory, RunLog, read_run
from glmforge.report.figures import source_curves
from glmforge.report.figures_balance import columns, dead_experts
from glmforge.report.report import write_report
from glmforge.report.summary import summarize
from glmforge.report.tables import make_tables, training_seconds
from helpers.synthetic_run import TOKENS_PER_STEP, write_synthetic_run

ALL_FIGURES = ["Training loss", "Loss of each source", "Held-out text",
               "Gap between training and held-out text", "Accuracy", "Multi-token prediction",
               "Learning rate", "Throughput", "Gradient norm", "Batch size", "Expert balance", "Router biases",
               "Drift of the router biases", "Balance of every layer", "Load of every expert"]  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """Parses a page strictly: every tag closes in order. Keeps headings, links, ids and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []
        self.links: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.num_plots = 0
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(tag, dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h3":
            self.titles.append(data)
        if "style" not in self.open:
            self.text += data

    def _attributes(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.num_plots += tag == "svg"
        if "id" in attributes:
            self.ids.append(str(attributes["id"]))
        if tag == "a":
            self.links.append(str(attributes["href"]))
        for name in ("src", "href", "xlink:href"):
            if tag != "a" and name in attributes:
                self.references.append(str(attributes[name]))


def _page(root: Path, **arguments: object) -> Page:
    return Page(write_report(root, **arguments).read_text(encoding="utf-8"))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_run(tmp_path_factory.mktemp("runs") / "full", num_steps=200, killed_at=120)


@pytest.fixture(scope="module")
def full_text(full_run: Path) -> str:
    return write_report(full_run).read_text(encoding="utf-8")


def test_a_full_run_shows_every_figure_and_table(full_text: str) -> None:
    page = Page(full_text)
    assert page.titles == ALL_FIGURES
    assert page.num_plots == len(ALL_FIGURES)
    for words in (
        "synthetic",
        "819k",  # tokens
        "killed",
        "resumed",
        "phase code",
        "Phases",
        "Last evaluation",
        "Events",
        "None of 256 experts were unused",
        "cross-entropy (nats/token)",
        "MTP",
        "Synthetic CPU, 2 cores",
        "torch 2.13.0",
        "not in a git repository",
        "n_routed_experts: 32",
    ):
        assert words in page.text, words


def test_the_page_needs_nothing_else(full_text: str) -> None:
    page = Page(full_text)
    assert all(reference.startswith(("#", "data:")) for reference in page.references)
    assert page.references
    assert "<script" not in full_text
    assert "@import" not in full_text


def test_ids_are_unique_and_referred_to(full_text: str) -> None:
    page = Page(full_text)
    assert len(page.ids) == len(set(page.ids))
    referred = set(re.findall(r'(?:url\(|href=")#([\w-]+)', full_text))
    assert referred <= set(page.ids)


def test_the_report_is_the_same_when_written_again(full_run: Path, full_text: str) -> None:
    assert write_report(full_run).read_text(encoding="utf-8") == full_text


@pytest.fixture
def minimal_run(tmp_path: Path) -> Path:
    root = tmp_path / "minimal"
    root.mkdir()
    (root / "config.yaml").write_text("name: minimal\n")
    (root / "run.json").write_text('{"name": "minimal"}')
    with JsonlFile(root / "metrics.jsonl") as file:
        file.write({"step": 1, "tokens": 512, "loss": 9.01})
    return root


def test_a_minimal_run_shows_what_there_is(minimal_run: Path) -> None:
    page = _page(minimal_run)
    assert page.titles == ["Training loss"]
    assert "9.010" in page.text
    for absent in ("Events", "Last evaluation", "Samples", "nan"):
        assert absent not in page.text


def test_a_diverged_run_still_gets_its_report(tmp_path: Path) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=40, killed_at=None)
    with JsonlFile(root / "metrics.jsonl") as file:
        file.write(
            {
                "step": 41,
                "phase": "code",
                "tokens": 41 * TOKENS_PER_STEP,
                "loss": float("nan"),
                "grad_norm": 1.0,
            }
        )
    page = _page(root)
    assert page.titles == ALL_FIGURES
    assert "nan" in page.text  # the last loss, as it is


def test_a_long_run_makes_a_page_no_larger_than_a_short_one_needs(tmp_path: Path) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=1200, killed_at=None)
    with JsonlFile(root / "metrics.jsonl") as file:
        for step in range(1201, 20_001):
            file.write({"step": step, "phase": "code", "tokens": step * TOKENS_PER_STEP, "loss": 2.0 + step % 7 / 10})
    # 14 plots of at most 600 points and a band each; 20,000 points each would be several MB.
    assert write_report(root).stat().st_size < 700_000


def test_samples_and_facts_are_shown_as_text(minimal_run: Path) -> None:
    sample = {"prompt": "<script>alert(1)</script>", "completion": "a < b & c"}
    page = _page(minimal_run, extra={"samples": [sample], "facts": {"Parameters": "4.9M"}})
    assert "<script>alert(1)</script>" in page.text
    assert "a < b & c" in page.text
    assert "4.9M" in page.text
    assert "<script" not in RunDirectory(minimal_run).report.read_text()


def test_answers_stand_beside_their_references_and_what_was_answered_before(tmp_path: Path) -> None:
    """Hostile text on all sides, escaped once."""
    root = write_synthetic_run(tmp_path / "run", num_steps=1, killed_at=None)
    hostile = "</pre><script>alert('x')</script>&amp;"
    with JsonlFile(root / "samples.jsonl") as file:
        for step in (1, 2, 3):
            for number in range(30):
                given = {"source": "<i>", "prompt": f"{number} {hostile}", "reference": f"right {hostile}", "sample": 0}
                said = {"completion": f"said {step} {hostile}", "finished": "stop", "malformed": "holds <b>"}
                file.write({"step": step, **given, **said})
            file.write({"step": step, "prompt": "def ", "sample": 0, "completion": f"plain {step}"})
    with JsonlFile(root / "evaluation.jsonl") as file:
        file.write({"step": 3, "tokens": 9, "source": "<i>", "num_answers": 30, "stopped": 1.0, "well_formed": 0.5})
    page = _page(root)
    text = RunDirectory(root).report.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>holds" not in text
    assert "&amp;lt;" not in text, "escaped twice"
    assert page.text.count(f"said 3 {hostile}") == page.text.count(f"right {hostile}") == 24
    assert page.text.count(f"said 1 {hostile}") == page.text.count(f"said 2 {hostile}") == 24
    assert page.text.count("At earlier evaluations") == 24
    assert "And 7 more of the last evaluation" in page.text
    assert "<i>, step 3, stopped, malformed: holds <b>" in page.text
    assert "Held-out answers" in page.titles
    tables = {table.title: table.rows for table in make_tables(read_run(root), root)}
    assert [cell.text for cell in tables["Answers to held-out prompts"][0]] == ["<i>", "3", "30", "100.0%", "50.0%"]
    assert tables["Last evaluation"][0][0].text == "code", "the record of answers is none of loss"


def test_a_text_is_followed_through_the_evaluations(tmp_path: Path) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=1, killed_at=None)
    with JsonlFile(root / "samples.jsonl") as file:
        for step in range(1, 41):
            file.write({"step": step, "prompt": "def ", "sample": 0, "completion": f"said at {step}."})
            for number in range(2):
                file.write({"step": step, "prompt": "twice", "sample": 0, "completion": f"twin {number} at {step}."})
        file.write({"step": 3, "prompt": "no longer asked", "sample": 0, "completion": "gone"})
        file.write({"step": 40, "prompt": "p" * 5000, "reference": "r", "source": "c", "sample": 0, "completion": "x"})
    text = write_report(root).read_text(encoding="utf-8")
    assert "<b>def </b>said at 40." in text
    assert [f"said at {step}." in text for step in (1, 2, 5, 10, 35, 39)] == [True, False, True, True, True, False]
    assert "gone" not in text
    assert [text.count(f"twin {number} at 1.") for number in (0, 1)] == [1, 1]
    assert "…" + "p" * 2000 + "</b>" in text


def test_links_lead_to_the_files_from_where_the_report_lies(full_run: Path, tmp_path: Path) -> None:
    (full_run / "odd name#1").mkdir(exist_ok=True)
    elsewhere = tmp_path / "reports" / "full.html"
    page = _page(full_run, out=elsewhere)
    assert len(page.links) >= 7
    for link in page.links:
        assert (elsewhere.parent / link.replace("%20", " ").replace("%23", "#")).exists(), link


def test_a_missing_run_is_an_error_naming_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"config\.yaml: no such file"):
        write_report(tmp_path)


def test_without_matplotlib_the_error_names_the_extra(minimal_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("figures", "figures_balance", "canvas"):
        monkeypatch.delitem(sys.modules, f"glmforge.report.{name}", raising=False)
    with pytest.raises(GlmforgeError, match=r"pip install 'glmforge\[observe\]'"):
        write_report(minimal_run)


def test_training_time_counts_the_steps_between_records() -> None:
    records = [{"step": 10, "step_seconds": 2.0}, {"step": 15, "step_seconds": 1.0}, {"step": 16}]
    assert training_seconds(records) == 10 * 2.0 + 5 * 1.0


def test_phases_add_up(full_run: Path) -> None:
    summary = summarize(read_run(full_run), report_dir=full_run, facts={})
    phases = next(table for table in summary.tables if table.title == "Phases")
    assert [[cell.text for cell in row][:2] for row in phases.rows] == [["general", "159"], ["code", "41"]]
    assert [row[3].text for row in phases.rows] == ["75.0%", "75.0%"]


def tables_of(run: RunLog, **changes: object) -> dict[str, list[list[str]]]:
    changed = replace(run, **changes)  # type: ignore[arg-type]
    tables = make_tables(changed, run.directory.root)
    return {table.title: [[cell.text for cell in row] for row in table.rows] for table in tables}


def test_sources_have_their_share_epochs_and_loss(full_run: Path) -> None:
    rows = tables_of(read_run(full_run))["Sources"]
    assert [row[:4] for row in rows] == [["web", "600k", "75.0%", "0.4"], ["books", "200k", "25.0%", "2"]]
    assert re.fullmatch(r"\d\.\d{3} → \d\.\d{3}", rows[0][4])


def test_sources_beyond_the_eighth_share_a_curve() -> None:
    names = [f"s{number}" for number in range(10)]
    records = [
        {
            "tokens": 100 * step,
            "phase": "a" if step < 3 else "b",
            "source_tokens": {name: (20 - number) * step for number, name in enumerate(names)},
            "source_loss": {name: float(number) for number, name in enumerate(names) if step < 3 or number > 0},
        }
        for step in (1, 2, 3)
    ]
    curves = source_curves(RunLog(RunDirectory(Path()), {}, "", {}, records, [], []))
    assert list(curves) == [*names[:7], "other"]
    # s7, s8 and s9 with 13, 12 and 11 tokens a step.
    assert [part[1].tolist() for part in curves["other"]] == [[pytest.approx(286 / 36)] * 2, [pytest.approx(286 / 36)]]
    assert [part[0].tolist() for part in curves["s0"]] == [[100, 200]]  # phase b does not draw from it


def test_checkpoints_show_what_they_cost(full_run: Path) -> None:
    run = read_run(full_run)
    events = [{"time": "", "step": 100, "event": event} for event in ("saved", "saved", "save failed")]
    # Two saves in 200 steps of 4096 / 9200 s.
    assert tables_of(run, events=events)["Checkpoints"] == [
        ["2", "1", "2.00 MiB", "0.2s", "0.22%", "1.0s", "2.00 MiB/s"]
    ]
    without = [{k: v for k, v in record.items() if not k.startswith("checkpoint")} for record in run.metrics]
    assert "Checkpoints" not in tables_of(run, metrics=without)


def test_events_that_happen_all_the_time_are_folded(full_run: Path) -> None:
    def event(step: int, kind: str, detail: str = "") -> dict[str, object]:
        return {"time": "2026-03-01T12:00:00Z", "step": step, "event": kind, "detail": detail}

    events = [event(0, "started")]
    for step in range(1, 31):
        events.append(event(step, "saved", f"{'permanent' if step % 10 == 0 else 'ephemeral'}, 1 MiB"))
    events += [event(step, "anomaly", f"loss {step}") for step in range(31, 41)]
    rows = tables_of(read_run(full_run), events=events)["Events"]
    assert [row[1:] for row in rows[:5]] == [
        ["0", "started", ""],
        ["", "saved ×26", "earlier, ephemeral since step 1; see events.jsonl"],
        ["29", "saved", "ephemeral, 1 MiB"],
        ["", "saved ×2", "earlier, permanent since step 10; see events.jsonl"],
        ["30", "saved", "permanent, 1 MiB"],
    ]
    assert rows[5][1:] == ["", "anomaly ×2", "earlier, since step 31; see events.jsonl"]
    assert [row[1] for row in rows[6:]] == [str(step) for step in range(33, 41)]


def test_accuracy_stands_beside_the_loss(full_run: Path) -> None:
    record = {"step": 1, "source": "chat", "bits_per_byte": 1.5, "nll": 2.0, "accuracy": 0.4567}
    assert tables_of(read_run(full_run), evaluations=[record])["Last evaluation"][0][:5] == [
        "chat", "1", "1.5000", "2.0000", "45.7%"
    ]  # fmt: skip


def test_acceptance_of_every_depth_is_shown(full_run: Path) -> None:
    record = {"step": 1, "source": "code", "mtp_acceptance": 0.5, "mtp_acceptance_by_depth": [0.5, 0.25]}
    assert tables_of(read_run(full_run), evaluations=[record])["Last evaluation"][0][-1] == "50.0% / 25.0%"


def test_what_was_left_out_is_a_headline(full_run: Path) -> None:
    run = read_run(full_run)
    last = run.metrics[-1] | {"skipped_samples": 1024, "nonfinite_steps_total": 0}
    tiles = summarize(replace(run, metrics=[last]), report_dir=full_run, facts={}).tiles
    assert ("Skipped", "1,024") in [tile[:2] for tile in tiles]
    assert "Not taken" not in [tile.label for tile in tiles]


def layer_run(*records: dict[str, object]) -> RunLog:
    model = {"first_k_dense_replace": 1, "num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    return RunLog(RunDirectory(Path()), {}, "", {"model": model}, list(records), [], [])


def test_dead_experts_are_told_in_words() -> None:
    run = layer_run({"step": 5, "layer_dead_experts": [0, 3, 4]}, {"step": 9, "layer_dead_experts": [0, 2]})
    assert dead_experts(run) == "Experts without a token at step 9: in layers 2 (2); the most were 7, at step 5."
    assert dead_experts(layer_run({"step": 5, "layer_dead_experts": [0, 0, 0]})).endswith("at step 5: in no layer.")
    assert dead_experts(layer_run({"step": 5})) == ""


def test_columns_hold_the_worst_step_and_gaps_repeat() -> None:
    tokens = [100 * step for step in range(1, 601)]
    tokens[300:] = [token + 6000 for token in tokens[300:]]  # nothing is recorded for a while
    records = [{"tokens": token, "layer_max_violation": [token / 100, 0.0]} for token in tokens]
    records[10]["layer_max_violation"] = [99.0]  # a step without the second layer
    edges, worst_LC = columns(records)
    assert worst_LC.shape == (2, 300)
    assert (edges[0], edges[-1]) == (0, 66000)
    assert worst_LC[0, 4] == 99.0  # tokens 1,100, of 220 a column
    assert worst_LC[0, 0] == 2.0  # of steps 1 and 2
    assert (worst_LC[0, 140:160] == worst_LC[0, 136]).all()
    assert (worst_LC[1] == 0).all()


def test_gpus_of_a_kind_are_counted(full_run: Path) -> None:
    run = read_run(full_run)
    gpus = [{"name": "GPU X", "memory_bytes": 80 << 30}] * 8
    run = replace(run, info={**run.info, "machine": {**run.info["machine"], "gpus": gpus}})
    assert summarize(run, report_dir=full_run, facts={}).facts["GPUs"] == "8 × GPU X (80.0 GiB)"
