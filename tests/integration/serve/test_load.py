"""The load benchmark, small: what it counts as wrong is wrong."""

from pathlib import Path

import serve_load


def test_many_streams_and_clients_that_vanish(served_model: Path) -> None:
    result = serve_load.measure(served_model, streams=6, seconds=1.0)
    assert not result["num_wrong"], result["wrong"]
    assert result["exit_status"] == 0
    assert result["failures_in_log"] == 0
    assert result["outcomes"]["whole: whole"]
