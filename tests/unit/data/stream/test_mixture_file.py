"""Mixtures of shards as files."""

import pytest

from glmforge.config import load_config
from glmforge.data.stream.mixture_file import plan_mixture, write_mixture
from glmforge.errors import DataError
from helpers.stream_runs import write_sparse_shard


@pytest.fixture
def prefixes(tmp_path):
    sizes = {"web": 800_000, "code": 100_000, "books": 100_000}
    return [write_sparse_shard(tmp_path / name, size).prefix for name, size in sizes.items()]


@pytest.mark.parametrize(
    ("ratios", "tokens", "caps", "given"),
    [
        (None, None, None, [800_000, 100_000, 100_000]),
        ([8, 1, 1], 500_000, None, [400_000, 50_000, 50_000]),
        ([0.5, 0.25, 0.25], None, None, [200_000, 100_000, 100_000]),
        ([0.5, 0.25, 0.25], None, [4], [800_000, 400_000, 400_000]),
        ([0.5, 0.25, 0.25], 800_000, [1, 1, 2], [500_000, 100_000, 200_000]),
        ([0.2, 0.4, 0.4], 1_000_000, [1], [800_000, 100_000, 100_000]),
        ([1, 1, 1], 9_000_000, None, [3_000_000] * 3),
    ],
)
def test_what_is_taken_of_each(prefixes, ratios, tokens, caps, given):
    sources = plan_mixture(prefixes, ratios, tokens=tokens, max_epochs=caps)
    assert [source.tokens for source in sources] == given
    assert [source.epochs for source in sources] == [
        count / source.num_tokens for count, source in zip(given, sources, strict=True)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratios": [1, 2]}, r"ratios: 2 for 3 inputs"),
        ({"ratios": [1, 2, 0]}, r"ratios: must be positive"),
        ({"ratios": [1, 2, float("nan")]}, r"ratios: must be positive"),
        ({"max_epochs": [1, 2]}, r"max_epochs: pass one positive number for all inputs, or 3"),
        ({"max_epochs": [1], "tokens": 2_000_000}, r"tokens 2,000,000: the sources have 1,000,000 too few"),
        ({"tokens": 0}, r"tokens 0: must be between"),
    ],
)
def test_numbers_that_do_not_fit(prefixes, change, message):
    with pytest.raises(DataError, match=message):
        plan_mixture(prefixes, **({"ratios": [1, 1, 1]} | change))


def test_a_run_builds_on_the_file(prefixes, tmp_path):
    write_sparse_shard(tmp_path / "web-held-out", 1000)
    out = tmp_path / "mixture.yaml"
    write_mixture(plan_mixture(prefixes, [0.5, 0.3, 0.2], max_epochs=[4]), tmp_path / "t", out, code=["code"])
    with pytest.raises(DataError, match="exists; choose another name, or pass --force"):
        write_mixture([], tmp_path, out)
    (tmp_path / "run.yaml").write_text(
        "extends: mixture.yaml\nname: r\nmodel: tiny\nphases: [{name: p, steps: 1, seq_len: 8, batch_size: 1}]\n"
    )
    data = load_config(tmp_path / "run.yaml").data
    assert [(s.name, s.weight, s.max_epochs, s.code) for s in data.sources] == [
        ("web", 0.5, 4.0, False),
        ("code", 0.3, 4.0, True),
        ("books", 0.2, 4.0, False),
    ]
    assert [(s.name, s.path.name) for s in data.held_out] == [("web", "web-held-out")]


def test_names_come_from_paths(tmp_path):
    for name in ("a/text", "b/text"):
        (tmp_path / name).parent.mkdir()
        write_sparse_shard(tmp_path / name, 1000)
    sources = plan_mixture([tmp_path / "a/text", tmp_path / "b/text"])
    assert [source.name for source in sources] == ["a-text", "b-text"]
    with pytest.raises(DataError, match="appears twice"):
        plan_mixture([tmp_path / "a/text", tmp_path / "a/text"])
    with pytest.raises(DataError, match="code: no source 'c'"):
        write_mixture(sources, tmp_path, tmp_path / "m.yaml", code=["c"])
