import pytest

from glmforge.checkpoint.wording import describe_os_error, format_bytes, list_some


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1234, "1.23 kB"),
        (999_600, "1 MB"),
        (5 * 10**9, "5 GB"),
        (10**16, "1e+04 TB"),
    ],
)
def test_format_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_list_some():
    assert list_some([]) == ""
    assert list_some(["a", "b", "c"]) == "a, b, c"
    assert list_some(["a", "b", "c", "d", "e"], "; ") == "a; b; c and 2 more"


@pytest.mark.parametrize(
    ("error", "doing", "text"),
    [
        (
            OSError(28, "No space left on device"),
            "writing x",
            "no space left on device writing x; free space there or set another output_dir",
        ),
        (
            PermissionError(13, "Permission denied", "/x"),
            "",
            "permission denied using /x; make it accessible to this user or set another output_dir",
        ),
        (OSError(5, "Input/output error"), "", "input/output error"),
        (OSError("a reason without a number"), "", "a reason without a number"),
    ],
)
def test_describe_os_error(error, doing, text):
    assert describe_os_error(error, doing) == text
