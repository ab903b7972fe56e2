"""What a profile counts, from streams that a server sends, good and bad ones. Times are not tested."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.deploy.inference_profile import Level, Load, Profile, profile_server, read_profile
from glmforge.errors import GlmforgeError
from helpers.completion_server import CompletionServer, Raw, completion_server

LOAD = Load(prompt_words=5, output_tokens=3, requests=2)
NUM_OTHERS = 1 + 2 * 3
"""Requests beside those of the levels: one to warm up, and pairs for the cache of prefixes."""


def stream(*events: object, end: str = "data: [DONE]\n\n") -> Raw:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
    return 200, body.encode(), {"content-type": "text/event-stream"}


def piece(text: str) -> dict[str, object]:
    return {"choices": [{"text": text}]}


GOOD = stream(piece("a"), piece(""), piece("b"), {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})


@pytest.fixture
def server() -> Iterator[CompletionServer]:
    with completion_server() as found:
        yield found


def measured(server: CompletionServer, *batch_sizes: int, load: Load = LOAD) -> Profile:
    return profile_server(server.url, load, batch_sizes, model="glm", timeout=10)


def test_levels_count_tokens_as_the_server_does(server: CompletionServer) -> None:
    server.first = [GOOD] * 100
    found = measured(server, 1, 4)
    assert [(one.num_users, one.num_answers) for one in found.levels] == [(1, 2), (4, 8)]
    for level in found.levels:
        assert (level.prompt_tokens, level.output_tokens, level.errors) == (7, 3, {})
        assert 0 < level.first_token[0] <= level.first_token[1] <= level.first_token[2]
        assert level.between[0] >= 0
        assert level.tokens_per_second > 0
    assert found.prefix_gain > 0
    asked = [payload for _, payload, _ in server.asked]
    assert len(asked) == NUM_OTHERS + 2 + 8
    assert {(one["max_tokens"], one["min_tokens"], one["stream"]) for one in asked} == {(3, 3, True)}
    prompts = [one["prompt"] for one in asked]
    assert {len(prompt.split()) for prompt in prompts} == {5}
    assert len(set(prompts)) == len(prompts) - 3  # those of the cache are sent twice


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((503, b"busy", {}), "status 503"),
        (stream(piece("a"), {"error": {"message": "no"}}), "error in the stream"),
        (stream("text"), "malformed stream"),
        (stream({"choices": "many"}), "malformed stream"),
        (stream({"choices": [], "usage": {"completion_tokens": "x"}}), "malformed stream"),
        (stream(end="data: {\n\n"), "malformed stream"),
        (stream(end="data: " + "[" * 100_000 + "\n\n"), "malformed stream"),
        (stream(), "empty answer"),
    ],
)
def test_a_bad_answer_is_an_error_that_is_counted(server: CompletionServer, bad: Raw, reason: str) -> None:
    server.first = [GOOD, bad, GOOD, *[GOOD] * 6]
    (level,) = measured(server, 1).levels
    assert (level.num_answers, level.errors) == (1, {reason: 1})


def test_without_any_answer_there_is_no_level(server: CompletionServer) -> None:
    server.first = [(503, b"busy", {})] * 20
    with pytest.raises(GlmforgeError, match="no request of 2 users was answered: status 503"):
        measured(server, 2)


@pytest.mark.parametrize(
    ("speeds", "saturation"), [([10, 20, 40], None), ([10, 20, 21], 2), ([10, 10, 40], 1), ([10], None)]
)
def test_saturation(speeds: list[float], saturation: int | None) -> None:
    levels = [Level(2**place, 1, {}, 1, 1, [0.1] * 3, [0.1] * 3, 1, speed, None) for place, speed in enumerate(speeds)]
    assert Profile("http://a", "glm", LOAD, levels, 1.0).saturation == saturation


def test_files_pages_and_comparison(server: CompletionServer, tmp_path: Path) -> None:
    server.first = [GOOD] * 100
    command = ["profile", "inference", server.url, "--model", "<b>glm</b>", "--batch-sizes", "1,2", "--requests", "1"]
    for name in ("one", "two"):
        files = ["--out", f"{tmp_path}/{name}.json", "--page", f"{tmp_path}/{name}.html"]
        result = CliRunner().invoke(app, [*command, *files], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert "a prompt seen before" in result.stdout
    found = read_profile(tmp_path / "one.json")
    assert dataclasses.asdict(found) == {
        name: value for name, value in json.loads((tmp_path / "one.json").read_text()).items() if name != "saturation"
    }
    files = [f"{tmp_path}/{name}.json" for name in ("one", "two")]
    result = CliRunner().invoke(app, ["profile", "compare", *files, "--page", f"{tmp_path}/both.html"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "both.html").read_text()
    assert page.count("<figure") == 4
    assert "&lt;b&gt;glm" in page
    assert "<b>glm" not in page


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"saturation": 1, "server": 2}', "[" * 100_000])
def test_another_file_is_no_profile(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(GlmforgeError, match="not a profile"):
        read_profile(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://a"], "not a server URL"),
        (["http://127.0.0.1:1"], "does not list its models"),
        (["http://127.0.0.1:1", "--batch-sizes", "4,1"], "does not rise"),
        (["http://127.0.0.1:1", "--batch-sizes", "1,x"], "not a list of numbers"),
        (["http://127.0.0.1:1", "--batch-sizes", "0"], "not a list of numbers"),
        (["http://127.0.0.1:1", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
    ],
)
def test_wrong_input(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["profile", "inference", *arguments])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)
