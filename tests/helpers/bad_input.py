"""What every mistake of a user is answered with."""


def assert_one_line(outcome: tuple[int, str], *named: object) -> None:
    status, error = outcome
    assert status == 1, error
    lines = [line for line in error.splitlines() if line.startswith("glmforge: ")]
    assert len(lines) == 1, error
    assert "Traceback" not in error
    for name in named:
        assert str(name) in lines[0], error
