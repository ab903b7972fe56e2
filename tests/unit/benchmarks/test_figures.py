"""Figures in README and docs are those of the results, and a result tells when its code has changed."""

import json
import subprocess
from pathlib import Path

import figures
import pytest
import record


def test_every_marked_figure_is_that_of_its_result():
    assert figures.differing() == []


def test_measurements_on_the_strict_pages_are_marked_or_given():
    assert figures.without_source() == []


def test_every_result_says_what_it_measured_and_how():
    silent = [name for name in figures.results() if not figures._load(name).get("measured", {}).get("command")]
    assert silent == []


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one result, one document and one file of measured code."""
    for module in (figures, record):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "bench.py"), "--rounds", "3"])
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "step.py").write_text('"""What it does."""\n\nsteps = 3  # of them\n')
    (tmp_path / "docs").mkdir()
    figures._load.cache_clear()

    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    yield tmp_path
    figures._load.cache_clear()


def write_result(content):
    record.write_result("speed", content, code=["code"])
    figures._load.cache_clear()


def write_text(repository: Path, text: str) -> Path:
    file = repository / "docs" / "speed.md"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        ("fast", ".2f", "1.50"),
        ("rounds.1.seconds", ".1f", "0.2"),
        ("rounds.1.seconds", ".1F", ".2"),
        ('"in two words"."a.b"', ",d", "12,345"),
        ("fast * 2 / rounds.0.seconds", "g", "6"),
        ("fast - 1 + 2", "g", "2.5"),
        ("name", "s", "xz"),
        ('"J >= 0.8"', "d", "3"),
    ],
)
def test_a_figure_is_a_path_or_a_short_computation(repository, value, style, text):
    rounds = [{"seconds": 0.5}, {"seconds": 0.2}]
    write_result({"fast": 1.5, "rounds": rounds, "in two words": {"a.b": 12345}, "name": "xz", "J >= 0.8": 3})
    file = write_text(repository, f"<!--fig speed {value} {style}-->{text}<!--/fig-->")
    assert [figure.wanted for figure in figures.figures(file)] == [text]


def test_a_changed_result_is_found_in_the_text_and_written_into_it(repository):
    write_result({"fast": 1.5, "slow": 2})
    file = write_text(
        repository, "It takes <!--fig speed fast .1f-->1.5<!--/fig--> s,\nor\n<!--fig speed slow d-->2<!--/fig--> s.\n"
    )
    assert figures.differing() == []
    write_result({"fast": 1.5, "slow": 3})
    assert figures.differing() == ["docs/speed.md:3: says 2, measured is 3"]
    figures.update()
    assert file.read_text().endswith("<!--fig speed slow d-->3<!--/fig--> s.\n")
    assert "<!--fig speed fast .1f-->1.5<!--/fig--> s," in file.read_text()


@pytest.mark.parametrize(
    ("text", "figures_found"),
    [
        ("It takes 1.5 s and 20 %, that is 1.18x.", ["1.5 s", "20 %", "1.18x"]),
        ("F1 .938 at 78,898 per CPU second, 57 MB/s", [".938", "78,898 per CPU second", "57 MB/s"]),
        ("- 12 documents a second\n", ["12 documents a second"]),
        ("8 x 256 tokens, version 3.11, 1e-5, layers.3.mlp, `sleep 5 s`, [text](file_5s.md), 355B", []),
        ("```\nwaits 5 s\n```\n<!--fig speed fast .1f-->1.5 s<!--/fig-->", []),
        ("sent again after 60 s, as set", []),
    ],
)
def test_a_measurement_without_a_result_is_found(repository, monkeypatch, text, figures_found):
    exempt = repository / "given.toml"
    exempt.write_text('"docs/speed.md" = ["after 60 s"]')
    monkeypatch.setattr(figures, "GIVEN", exempt)
    figures.given.cache_clear()
    assert [found for _, found in figures.unmarked(write_text(repository, text))] == figures_found
    figures.given.cache_clear()


def test_a_result_says_command_revision_machine_and_code(repository):
    (repository / "bench.py").write_text("")
    write_result({"fast": 1.5})
    measured = json.loads((repository / "benchmarks" / "results" / "speed.json").read_text())["measured"]
    assert measured["command"] == "python bench.py --rounds 3"
    assert measured["code"] == ["bench.py", "code"]
    assert measured["machine"]["cores"] >= 1
    assert {"revision", "date", "versions", "load_average"} <= measured.keys()


@pytest.mark.parametrize(
    ("code", "stale"),
    [
        ('"""What it does, said better."""\n# why\n\nsteps = 3  # of them\n', False),
        ('"""What it does."""\n\nsteps = 4  # of them\n', True),
        ("steps = 3  # of them\nsteps = '''What it does.'''\n", True),
    ],
)
def test_code_that_changed_makes_a_result_stale_and_comments_do_not(repository, code, stale):
    write_result({"fast": 1.5})
    assert figures.why_stale("speed") is None
    (repository / "code" / "step.py").write_text(code)
    assert (figures.why_stale("speed") is not None) == stale
