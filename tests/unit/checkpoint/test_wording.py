from glmforge.checkpoint.format.wording import list_some


def test_list_some():
    assert list_some([]) == ""
    assert list_some(["a", "b", "c"]) == "a, b, c"
    assert list_some(["a", "b", "c", "d", "e"], "; ") == "a; b; c and 2 more"
