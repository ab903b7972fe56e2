"""The page of an evaluation: everything is on it, nothing is loaded, text from outside stays text."""

import json
import re
from pathlib import Path

import pytest

from glmforge.errors import ConfigError, DataError
from glmforge.evaluate.compare import compare_results
from glmforge.report.evaluation_page import write_page
from helpers.results import chosen, item, made_result, reply, row, text_of, written

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 12347*7 }} \u202egnp.exe \x00 ' \" & <b>"


def test_hostile_text_stays_text_wherever_it_stands(tmp_path: Path) -> None:
    """Prompt, target, subject, reply, extraction, benchmark, model, settings: none of it becomes markup."""
    asked = item(0, 0.0, benchmark=HOSTILE, prompt=HOSTILE, target=HOSTILE, subject=HOSTILE, level=HOSTILE)
    items = [
        asked.model_copy(update={"written": (reply(HOSTILE, answer=HOSTILE + "!", extracted=HOSTILE),)}),
        asked.model_copy(update={"number": 1, "subject": "other", "digest": "another"}),
    ]
    fields = {"settings": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}, "weights": "<w>", "created": HOSTILE}
    scores = [row(items, extra={HOSTILE: 0.5}, refused=HOSTILE)]
    made_result(tmp_path / "new", items, model=HOSTILE, scores=scores, **fields)
    made_result(tmp_path / "old", [one.model_copy(update={"score": 1.0}) for one in items])
    for page in (write_page(tmp_path / "new"), write_page(tmp_path / "new", baseline=tmp_path / "old")):
        content = page.read_text()
        assert "<script" not in content
        assert "<img" not in content
        assert "<b>" not in content
        assert content.count("&lt;script&gt;") >= 5
        assert "86429" not in content


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path: Path) -> None:
    made_result(tmp_path, [written(0, 0.0, "broken \ud83d end")])
    assert "broken ? end" in text_of(write_page(tmp_path))


def test_nothing_is_loaded(tmp_path: Path) -> None:
    content = write_page(made_result(tmp_path, [written(0, 0.0), chosen(1, 0, 1)])).read_text()
    assert not re.findall(r"""(?:src|href)=["']?(?!#)|url\(|@import|https?://""", content)


def test_score_finished_score_cut_share_chance_and_published_figures(tmp_path: Path) -> None:
    items = [written(n, float(n < 2), is_cut=n >= 3) for n in range(4)]
    few = [chosen(n, 0, n % 4) for n in range(8)]
    scores = [row(items), row(few, chance=0.25, num_truncated=3)]
    shown = text_of(write_page(made_result(tmp_path, [*items, *few], scores=scores)))
    assert "gsm8k 4 50.0% 40.0% to 60.0% 66.7% 25.0% 79.4% GLM-4.5-Base" in shown
    assert "mmlu: the interval contains the score of guessing; 3 prompts were too long" in shown
    assert "mmlu GLM-4.5 90.0% sampling and budget not stated GLM-4.5 technical report" in shown
    assert "the model always prefers one place" in shown


def test_none_finished_is_said_and_not_left_blank(tmp_path: Path) -> None:
    shown = text_of(write_page(made_result(tmp_path, [written(n, 0.0, is_cut=True) for n in range(3)])))
    assert "none 100.0%" in shown
    assert "raise --max-new-tokens Evidence: none of 3 replies finished" in shown


def test_flipped_items_stand_side_by_side_with_the_reason(tmp_path: Path) -> None:
    """Ten items were right; of the new result's six fall, five of them because they are cut."""
    before = [written(n, 1.0, f"It is {n}.", extracted=f"{n}") for n in range(10)]
    after = [
        written(n, float(n >= 6), "so many words", is_cut=n < 5, extracted=None if n < 6 else "9") for n in range(10)
    ]
    after = [one.model_copy(update={"subject": "algebra" if one.number < 4 else "geometry"}) for one in after]
    made_result(tmp_path / "old", before, settings={"generation": {"max_new_tokens": 512}})
    made_result(tmp_path / "new", after, settings={"generation": {"max_new_tokens": 64}})
    shown = text_of(write_page(tmp_path / "new", tmp_path / "page.html", baseline=tmp_path / "old"))
    assert "gsm8k worse 10 100.0% → 40.0% -60.0" in shown
    assert "100.0% → 80.0% 0.0% → 50.0% 0 6" in shown  # finished, cut, better, worse
    assert "6 items fell; their failures in the new result: 5 cut, 1 no format" in shown
    assert "most is lost in algebra (-4.0 items), geometry (-2.0 items)" in shown
    assert "Asked differently: generation.max_new_tokens was 512, is 64." in shown
    assert (
        "Old It is 0. extracted “0”; score 1.00; 9 tokens New so many words extracted nothing; score 0.00; cut" in shown
    )


def test_what_rose_is_explained_by_its_old_failures(tmp_path: Path) -> None:
    old = made_result(tmp_path / "old", [written(0, 0.0, is_cut=True), written(1, 1.0)])
    new = made_result(tmp_path / "new", [written(0, 1.0), written(1, 1.0)])
    (found,) = compare_results(old, new)
    assert found.explained() == ["1 item rose; their failures in the old result: 1 cut"]


def test_long_texts_are_shown_from_both_ends(tmp_path: Path) -> None:
    middle = "lost" * 2000
    made_result(tmp_path, [written(0, 0.0, f"BEGIN{middle}END").model_copy(update={"prompt": f"FIRST{middle}LAST"})])
    page = write_page(tmp_path)
    assert all(word in page.read_text() for word in ("BEGIN", "END", "FIRST", "LAST", "5,608 characters"))
    assert len(page.read_text()) < 60_000


def test_needles_and_perplexity_of_the_directory(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = {"needle_task": "single", "needle_method": "scored", "needle_answers": 10}
    records = [
        common | {"needle_length": length, "needle_depth": depth, "needle_accuracy": depth}
        for length in (4096, 32768)
        for depth in (0.0, 0.5)
    ]
    records += [{"position": 1024 * n, "nll": 2.0 + n} for n in range(3)]
    made_result(tmp_path, [written(0, 1.0)])
    (tmp_path / "needles.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shown = text_of(write_page(tmp_path))
    assert "Needles by length and depth" in shown
    assert "32,768" in shown
    assert "Perplexity by position" in shown
    (tmp_path / "needles.jsonl").write_text('{"needle_task": "single"}\n')
    with pytest.raises(DataError, match="not the records of 'glmforge evaluate needles --out'"):
        write_page(tmp_path)


def test_a_page_is_called_html(tmp_path: Path) -> None:
    made_result(tmp_path, [written(0, 1.0)])
    with pytest.raises(ConfigError, match=r"--out: .*\.htm: does not end in \.html"):
        write_page(tmp_path, tmp_path / "page.htm")
