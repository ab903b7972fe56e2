"""Results on the disk: written whole, checked on reading, whatever they hold."""

import json
from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge.evaluate.result import Interval, Score, changed, flat, read_items, read_result
from helpers.results import item, made_result, written

ITEM = {"benchmark": "b", "number": 0, "digest": "d", "prompt": "p", "target": "t", "score": 0.5}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    items = [written(0, 1.0), item(1, 0.5, subject="s", cluster="c", metrics={"m": 0.1})]
    made_result(tmp_path, items, settings={"asking": {"chat": True}}, step=3)
    assert list(read_items(tmp_path)) == items
    assert list(read_items(tmp_path / "result.json")) == items
    assert read_result(tmp_path / "result.json").step == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"score": float("nan")}, "score: "),
        ({"score": 1e300}, "score: "),
        ({"score": "right"}, "score: "),
        ({"number": -1}, "number: "),
        ({"number": 10**400}, "number: "),
        ({"metrics": {"\x1b[2J\nnext line": "x"}}, "metrics"),
        ({"prompt": None}, "prompt: "),
        ({"written": [{"text": "no score"}]}, "written.0"),
    ],
)
def test_a_damaged_item_is_one_line_that_says_where(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    lines = [json.dumps(ITEM), json.dumps(ITEM | fields)]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError) as raised:
        list(read_items(tmp_path))
    shown = str(raised.value)
    assert shown.startswith(f"{tmp_path}/items.jsonl:2: ")
    assert message in shown
    assert shown.isprintable()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b"{", b'{"model": "\\ud800", "scores": []}', b'{"model": "m", "scores": [1]}']
)
def test_a_damaged_result_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(DataError, match=r"result\.json: ") as raised:
        read_result(tmp_path)
    assert str(raised.value).isprintable()


def test_a_score_never_stands_without_finished_replies_and_cut_share() -> None:
    score = Score(
        benchmark="b", metric="m", num_items=4, score=0.25, interval=Interval(low=0.1, high=0.5), fingerprint="f"
    )
    assert score.text == ("25.0%", "10.0% to 50.0%", "", "", "")
    replies = score.model_copy(update={"num_finished": 0, "cut_share": 1.0, "chance": 0.0})
    assert replies.text == ("25.0%", "10.0% to 50.0%", "none", "100.0%", "0.0%")
    bits = score.model_copy(update={"score": -1.2345, "interval": None})
    assert bits.text.score == "-1.234"  # bits per byte are no share


def test_settings_that_differ_are_named() -> None:
    old = {"asking": {"chat": False, "limit": 3}, "benchmarks": {"mmlu": "d"}}
    assert flat(old) == {"asking.chat": False, "asking.limit": 3, "benchmarks.mmlu": "d"}
    assert changed(old, old | {"asking": {"chat": True}}) == {"asking.chat": (False, True), "asking.limit": (3, None)}
