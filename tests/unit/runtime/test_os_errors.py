import pytest

from glmforge.runtime.os_errors import describe_os_error


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
