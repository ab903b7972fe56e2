import pytest

from glmforge.data.documents.document import Document
from glmforge.data.tokens.sample import load_mixture, plan_sample, sampled_chunks
from glmforge.errors import ConfigError, DataError


def documents(name: str, number: int) -> list[Document]:
    return [Document(f"{name}{i}", "x" * (10 + i % 7), name) for i in range(number)]


def sampled_ids(corpora, num_bytes, seed=0):
    shares = plan_sample(corpora, num_bytes, seed)
    return {id_ for chunk in sampled_chunks(corpora, shares) for id_ in chunk.ids}, shares


def test_weights_are_shares_of_the_bytes():
    corpora = [("a", documents("a", 3000), 3.0), ("b", documents("b", 3000), 1.0)]
    _, (a, b) = sampled_ids(corpora, 20_000)
    assert 14_900 < a.num_bytes <= 15_000
    assert 4_900 < b.num_bytes <= 5_000


def test_a_small_source_is_taken_whole():
    ids, (share,) = sampled_ids([("a", documents("a", 50), 1.0)], 10**9)
    assert len(ids) == 50
    assert share.num_bytes == share.num_bytes_there < share.num_bytes_wanted


def test_the_sample_depends_on_ids_and_seed_and_grows():
    corpus = documents("a", 2000)
    small, _ = sampled_ids([("a", corpus, 1.0)], 5_000)
    assert small == sampled_ids([("a", corpus[::-1], 1.0)], 5_000)[0]
    assert small < sampled_ids([("a", corpus, 1.0)], 10_000)[0]
    assert small != sampled_ids([("a", corpus, 1.0)], 5_000, seed=1)[0]


def test_mixture_file(tmp_path):
    path = tmp_path / "mixture.yaml"
    path.write_text("sources:\n- {name: web, paths: [a, b], weight: 2.0}\n- {name: code, paths: [c]}\n")
    web, code = load_mixture(path).sources
    assert (web.weight, code.weight, [p.name for p in web.paths]) == (2.0, 1.0, ["a", "b"])
    path.write_text("sources:\n- {name: web, paths: [a], wieght: 2.0}\n")
    with pytest.raises(ConfigError, match=r"mixture.yaml.*wieght"):
        load_mixture(path)


def test_a_sample_too_small_for_any_document_is_refused():
    with pytest.raises(DataError, match="a sample of 5 of the 33 available bytes contains no document; use a"):
        plan_sample([("a", documents("a", 3), 1.0)], 5)
