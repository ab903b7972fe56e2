import pytest

from glmforge.recipes.demo.standard_library import StandardLibrary, standard_library_documents


def test_it_is_megabytes_of_python():
    documents = list(standard_library_documents())
    ids = [document.id for document in documents]
    assert sum(len(document.text) for document in documents) > 4_000_000
    assert {"os.py", "json/decoder.py"} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert all(id_.endswith(".py") for id_ in ids)
    assert not any(part in id_.split("/") for id_ in ids for part in ("test", "site-packages", "encodings"))


def test_order_depends_on_names_only():
    first, second = ([document.id for document in standard_library_documents()] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("left_out", ["test/a.py", "site-packages/a.py", "_sysconfigdata_x.py", "a.txt", "empty.py"])
def test_what_is_left_out(tmp_path, left_out):
    for name in ("b.py", "pkg/a.py", left_out):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name == "empty.py" else "x = 1\n")
    assert [document.id for document in StandardLibrary(tmp_path)] == ["b.py", "pkg/a.py"]
