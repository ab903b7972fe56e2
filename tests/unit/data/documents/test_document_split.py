import pytest

from glmforge.data.documents.document import Document, is_held_out, split_held_out
from glmforge.errors import DataError

DOCUMENTS = [Document(f"file-{i}.py", f"text {i}", "memory") for i in range(20_000)]


def ids(documents):
    return [document.id for document in documents]


def test_parts_share_nothing_and_lose_nothing():
    training, held_out = split_held_out(DOCUMENTS, 0.1)
    assert sorted(ids(training) + ids(held_out)) == sorted(ids(DOCUMENTS))
    assert ids(training) == ids(training), "a part can be read again"


def test_fraction_is_met():
    _, held_out = split_held_out(DOCUMENTS, 0.1)
    # binomial: standard deviation sqrt(20,000 * .1 * .9) = 42; five of them
    assert abs(len(ids(held_out)) - 2000) < 212


def test_a_held_out_document_stays_so():
    """When the corpus grows and when the fraction is raised."""
    _, few = split_held_out(DOCUMENTS[:100], 0.1)
    _, many = split_held_out(DOCUMENTS, 0.2)
    assert set(ids(few)) <= set(ids(many))


def test_seed_chooses_other_documents():
    chosen = [{i for i in ids(DOCUMENTS) if is_held_out(i, 0.1, seed)} for seed in (0, 1)]
    assert len(chosen[0] & chosen[1]) < 400, "independent choices share about 200"


def test_choice_is_the_same_on_every_machine():
    """Pinned: a change would move documents of existing corpora between training and evaluation."""
    assert [i for i in range(60) if is_held_out(f"doc-{i}", 0.1)] == [2, 55]


def test_nothing_is_held_out_of_fraction_zero():
    training, held_out = split_held_out(DOCUMENTS, 0.0)
    assert (len(ids(training)), len(ids(held_out))) == (20_000, 0)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0])
def test_fraction_out_of_range(fraction):
    with pytest.raises(DataError, match="held-out fraction"):
        split_held_out(DOCUMENTS, fraction)


def test_a_generator_is_refused():
    with pytest.raises(DataError, match="only once"):
        split_held_out(iter(DOCUMENTS), 0.1)
