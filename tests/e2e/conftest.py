"""Commands in this process, whose defects come out as themselves."""

import pytest

from glmforge.cli.app import main


@pytest.fixture
def glmforge(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run a command; returns (exit status, stderr). An error that is no user's fault would come out as itself."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["glmforge", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capfd.readouterr().err

    return call
