"""`glmforge data generate` against a server on loopback that fails in every way a server can."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import typer
from typer.testing import CliRunner

from glmforge.data.documents.document import Document
from glmforge.endpoint import Endpoint
from glmforge.errors import ConfigError, DataError
from glmforge_corpus.cli import synthesise as command
from glmforge_corpus.synthesise.endpoint.ask import Server
from glmforge_corpus.synthesise.endpoint.generate import Sampling, generate
from glmforge_corpus.synthesise.endpoint.inputs import Question, read_questions

SECRET = "sk-very-secret-1234"


class Fake:
    """A chat completions server; `behave(prompt, seed, n)` says what the n-th request of a prompt and seed gets.

    It returns a dict (the JSON of a 200), (status, headers, text), or a word: "stall", "drop", "half".
    """

    def __init__(self, behave):
        self.behave, self.counts, self.bodies, self.headers = behave, Counter(), [], []
        self.lock, self.release = threading.Lock(), threading.Event()
        self.running = self.most_running = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt, seed = body["messages"][0]["content"], body.get("seed", 0)
                with fake.lock:
                    fake.counts[prompt, seed] += 1
                    number = fake.counts[prompt, seed]
                    fake.bodies.append(body)
                    fake.headers.append(dict(self.headers))
                    fake.running += 1
                    fake.most_running = max(fake.most_running, fake.running)
                try:
                    self.answer(fake.behave(prompt, seed, number))
                finally:
                    with fake.lock:
                        fake.running -= 1

            def answer(self, outcome):
                if outcome == "stall":
                    fake.release.wait(30)
                    outcome = "drop"
                if outcome == "drop":
                    self.close_connection = True
                    return
                status, headers, text = outcome if isinstance(outcome, tuple) else (200, {}, json.dumps(outcome))
                if outcome == "half":
                    status, headers, text = 200, {"Content-Length": "1000"}, '{"choices": ['
                    self.close_connection = True
                data = text.encode()
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(data))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.release.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def completion(content, finish="stop", prompt_tokens=10, completion_tokens=20):
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {
        "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish}],
        "usage": usage,
    }


def adder(prompt, seed, number):
    """Solves "a + b" by a reply that depends on prompt and seed only; one in four samples is wrong, one is cut off."""
    a, b = (int(word) for word in prompt.split("\n")[0].split(" + "))
    answer = a + b + (seed % 4 == 1)
    return completion(
        f"<think>{seed}: let me add.</think>It is \\boxed{{{answer}}}.", "length" if seed % 4 == 2 else "stop"
    )


def questions(count):
    return [Question(f"q{i}", f"{i} + {2 * i}", {"kind": "number", "answer": str(3 * i)}) for i in range(count)]


def server(fake, **options):
    return Server.model_validate(
        {"endpoint": fake.url, "concurrency": 8, "timeout": 20.0, "first_wait": 0.001} | options
    )


SAMPLING = Sampling(model="m", samples=3, max_tokens=100)


def lines(path):
    return [json.loads(line) for line in path.open()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a run without trouble gives."""
    out = tmp_path_factory.mktemp("plain")
    with Fake(adder) as fake:
        report = generate(questions(12), out, server(fake), SAMPLING)
        assert fake.most_running <= 8
    return out, report


def same_files(a, b):
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in ("accepted.jsonl", "rejected.jsonl"))


def test_right_solutions_are_kept_and_each_other_one_has_a_reason(plain):
    out, report = plain
    accepted, rejected = lines(out / "accepted.jsonl"), lines(out / "rejected.jsonl")
    assert len(accepted) + len(rejected) == 36
    assert report["accepted"] == len(accepted) > 0
    assert report["rejected"]["wrong answer"] + report["rejected"]["truncated"] == len(rejected) > 0
    assert report["complete"]
    for record in accepted:
        assert str(record["answer"]) in record["messages"][1]["content"]
        assert record["messages"][1]["reasoning_content"].endswith("let me add.")
        assert int(record["messages"][1]["reasoning_content"].split(":")[0]) % 4 in (0, 3)
    order = [record["id"] for record in accepted]
    assert order == sorted(order, key=lambda name: (int(name[1:].split("/")[0]), int(name.split("/")[1])))


def test_run_again_nothing_is_asked_again(plain):
    with Fake(adder) as fake:
        report = generate(questions(12), plain[0], server(fake), SAMPLING)
        assert not fake.bodies
    assert report["requests"]["solutions"]["reused"] == 36


@pytest.mark.parametrize(
    "trouble",
    ["drop", "half", (429, {"Retry-After": "0"}, "slow down"), (503, {}, "busy"), (200, {}, "no json")],
    ids=["drop", "half", "429", "503", "no json"],
)
def test_trouble_that_passes_changes_nothing(plain, tmp_path, trouble):
    def behave(prompt, seed, number):
        return trouble if number == 1 and seed % 3 == 0 else adder(prompt, seed, number)

    with Fake(behave) as fake:
        report = generate(questions(12), tmp_path, server(fake), SAMPLING)
        assert max(fake.counts.values()) == 2
    assert report["complete"]
    assert same_files(tmp_path, plain[0])


def test_a_server_that_stalls_is_asked_again_and_its_silence_counts_as_paid(plain, tmp_path):
    def behave(prompt, seed, number):
        return "stall" if prompt.startswith("5 ") and number == 1 else adder(prompt, seed, number)

    prices = {"prompt": 0.0, "completion": 1e4}
    with Fake(behave) as fake:
        report = generate(questions(12), tmp_path, server(fake, timeout=0.5, prices=prices), SAMPLING)
    assert report["requests"]["solutions"]["attempts"]["lost"] >= 3
    # 36 replies of 20 tokens at 0.01 each, and at least 3 lost ones of at most 100
    assert report["cost"]["spent"] >= 36 * 0.2 + 3 * 1.0 - 1e-9
    assert same_files(tmp_path, plain[0])


def test_what_never_works_is_left_for_the_next_run(plain, tmp_path):
    def behave(prompt, seed, number):
        return (503, {}, "down for ever") if prompt.startswith("7 ") else adder(prompt, seed, number)

    with Fake(behave) as fake:
        report = generate(questions(12), tmp_path, server(fake, attempts=3), SAMPLING)
        assert max(fake.counts.values()) == 3
    assert not report["complete"]
    assert report["requests"]["solutions"]["failed"] == {"503 down for ever": 3}
    with Fake(adder) as fake:
        assert generate(questions(12), tmp_path, server(fake), SAMPLING)["complete"]
        assert len(fake.bodies) == 3
    assert same_files(tmp_path, plain[0])


def test_a_reply_that_cannot_be_decoded_is_asked_for_again(plain, tmp_path):
    def behave(prompt, seed, number):
        broken = (200, {"Content-Encoding": "gzip"}, "this is no gzip")
        return broken if prompt.startswith("7 ") and number == 1 else adder(prompt, seed, number)

    with Fake(behave) as fake:
        report = generate(questions(12), tmp_path, server(fake), SAMPLING)
    assert report["requests"]["solutions"]["attempts"]["lost"] == 3
    assert same_files(tmp_path, plain[0])


def test_what_breaks_after_a_request_went_out_counts_as_paid(tmp_path, monkeypatch):
    async def ask(self, payload):
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(Endpoint, "ask", ask)
    prices = {"prompt": 0.0, "completion": 1e4}
    options = Server.model_validate({"endpoint": "http://localhost:1/v1", "concurrency": 1, "prices": prices})
    with pytest.raises(RuntimeError, match="a defect of ours"):
        generate(questions(3), tmp_path, options, SAMPLING)
    entries = [json.loads(line.partition(" ")[2]) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [entry["type"] for entry in entries] == ["sent", "lost"]
    assert entries[1]["cost"] == entries[0]["cost"] > 0


def test_a_refused_request_is_not_asked_again(tmp_path):
    def behave(prompt, seed, number):
        return (400, {}, "too long") if prompt.startswith("3 ") else adder(prompt, seed, number)

    for _ in range(2):
        with Fake(behave) as fake:
            report = generate(questions(6), tmp_path, server(fake), SAMPLING)
            asked = len(fake.bodies)
        assert report["rejected"]["refused"] == 3
        assert report["complete"]
    assert asked == 0


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_key_ends_the_run_and_is_never_written(tmp_path, status, monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with Fake(lambda *_: (status, {}, f"bad key {SECRET}")) as fake:
        with pytest.raises(DataError, match="rejects all requests") as error:
            generate(questions(50), tmp_path, server(fake), SAMPLING)
        assert len(fake.bodies) <= 8
        assert {headers["Authorization"] for headers in fake.headers} == {f"Bearer {SECRET}"}
    assert SECRET not in str(error.value) + caplog.text
    assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_the_cap_is_never_exceeded_and_raising_it_goes_on(plain, tmp_path):
    prices = {"prompt": 100.0, "completion": 1e4}  # a reply: 0.001 + 0.2; the most it can be: about 1.03
    with Fake(adder) as fake:
        report = generate(questions(12), tmp_path, server(fake, prices=prices, max_cost=3.0), SAMPLING)
        paid = len(fake.bodies)
    assert report["requests"]["solutions"]["capped"]
    assert not report["complete"]
    assert report["cost"]["spent"] == pytest.approx(paid * 0.201)
    # it went as far as it could: one more reply might have taken it over
    assert 3.0 - 1.05 < report["cost"]["spent"] <= 3.0
    with Fake(adder) as fake:
        report = generate(questions(12), tmp_path, server(fake, prices=prices, max_cost=3.0), SAMPLING)
        assert not fake.bodies
        report = generate(questions(12), tmp_path, server(fake, prices=prices, max_cost=20.0), SAMPLING)
        assert len(fake.bodies) == 36 - paid
    assert report["complete"]
    assert same_files(tmp_path, plain[0])


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_generate import SAMPLING, questions, Server
from glmforge_corpus.synthesise.endpoint.generate import generate
generate(questions(12), Path({out!r}), Server.model_validate({server!r}), SAMPLING)
"""


@pytest.mark.parametrize("after", [1, 20])
def test_killed_nothing_is_paid_twice_but_what_was_in_flight(plain, tmp_path, after):
    """The generator dies by SIGKILL when the server has so many requests; the next run ends with the same files."""
    process, concurrency = None, 4
    served = threading.Semaphore(0)

    def behave(prompt, seed, number):
        served.release()
        return adder(prompt, seed, number)

    with Fake(behave) as fake:
        options = {"endpoint": fake.url, "concurrency": concurrency, "prices": {"prompt": 1.0, "completion": 1.0}}
        program = PROGRAM.format(here=os.path.dirname(__file__), out=str(tmp_path / "out"), server=options)  # noqa: PTH120
        process = subprocess.Popen([sys.executable, "-c", program])
        for _ in range(after):
            assert served.acquire(timeout=60)
        process.send_signal(signal.SIGKILL)
        process.wait()
        report = generate(questions(12), tmp_path / "out", server(fake, **options | {"first_wait": 0.001}), SAMPLING)
        twice = sum(count - 1 for count in fake.counts.values())
    assert twice <= concurrency
    assert twice <= report["cost"]["lost_at_kill"] <= concurrency
    assert report["complete"]
    assert same_files(tmp_path / "out", plain[0])


DOCUMENTS = [Document(f"d{i}", f"Document {i}: there are {i} cats and {i + 1} dogs.", "x") for i in range(4)]


def zoo(prompt, seed, number):
    """Makes two questions of a document, one of them the same for all; solves them."""
    if "Text:" in prompt:
        i = int(prompt.rpartition("Document ")[2].split(":")[0])
        text = (
            f"<think>hm <question>no</question></think><question>{i} + {i + 1}</question><answer>{2 * i + 1}</answer>"
        )
        return completion(text + "<question>1 + 1</question>" if i < 3 else "I cannot.")
    return adder(prompt, 0, number)


def test_documents_become_questions_become_solutions(tmp_path):
    with Fake(zoo) as fake:
        report = generate(DOCUMENTS, tmp_path, server(fake), SAMPLING)
    made = lines(tmp_path / "questions.jsonl")
    assert [q["id"] for q in made] == ["d0#0", "d0#1", "d1#0", "d2#0"]
    assert report["questions_made"] == {"documents without a question": 1, "duplicates": 2}
    assert {q["verifier"] for q in made} == {None}  # answers that came with a question are not trusted unless asked
    accepted = lines(tmp_path / "accepted.jsonl")
    assert len(accepted) == 12
    assert {record["verifier"]["from"] for record in accepted} == {"vote"}
    assert {record["source"] for record in accepted} == {"d0", "d1", "d2"}


def test_only_questions(tmp_path):
    with Fake(zoo) as fake:
        report = generate(DOCUMENTS, tmp_path, server(fake), SAMPLING, only_questions=True, trust_answers=True)
        assert len(fake.bodies) == 4
    assert report["complete"]
    assert [q["verifier"] for q in lines(tmp_path / "questions.jsonl")] == [
        {"kind": "number", "answer": "1"}, None, {"kind": "number", "answer": "3"}, {"kind": "number", "answer": "5"},
    ]  # fmt: skip


def test_questions_are_read_from_gsm8k_and_our_own_records(tmp_path):
    path = tmp_path / "q.jsonl"
    rows = [
        {"question": "a?", "answer": "so 3*6=18\n#### 18"},
        {"problem": "b?"},
        {"question": "c?", "id": "c", "verifier": {"kind": "list", "answer": "[1]"}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "not json\n[1]\n{}\n\n")
    read = list(read_questions(path))
    assert read[:3] == [
        Question("q.jsonl:1", "a?", {"kind": "number", "answer": "18"}),
        Question("q.jsonl:2", "b?"),
        Question("c", "c?", {"kind": "list", "answer": "[1]"}),
    ]
    assert [line.split(":")[1] for line in read[3:]] == ["4", "5", "6"]


def test_command(tmp_path):
    app = typer.Typer()
    app.command()(command.generate)
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({"question": q.question, "verifier": q.verifier}) + "\n" for q in questions(5)))
    with Fake(adder) as fake:
        arguments = ["--endpoint", fake.url, "--model", "m", "--out", str(tmp_path / "out"), "--questions", str(path)]
        result = CliRunner().invoke(
            app, [*arguments, "--prompt-price", "1", "--completion-price", "2", "--max-cost", "9"]
        )
    assert result.exit_code == 0, result.output
    assert "solutions accepted" in result.output
    assert "cost:" in result.output
    before = sorted(tmp_path.rglob("*"))
    refused = {
        "--max-cost 1": "--max-cost: a cost cap needs prices",
        "--endpoint ftp://x": "--endpoint: not a server URL",
        "--endpoint http://user:pw@x/v1": "would be logged",
        "--documents x": "either --documents or --questions",
        f"--solution-prompt {path}": "does not use",
        "--solution-prompt none.j2": "none.j2: cannot be read (No such file or directory)",
        f"--solution-prompt {sys.executable}": "not UTF-8 text",
    }
    for wrong, message in refused.items():
        result = CliRunner().invoke(app, [*arguments, *wrong.split()])
        assert result.exit_code == 1
        assert isinstance(result.exception, ConfigError)
        assert message in str(result.exception)
        assert "pw" not in str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "q.jsonl: no questions; use JSON lines with one of question, "),
        ('{"text": "x"}\n\n{oops\n', "the first of 2 lines: q.jsonl:1: no text in a field question, problem, "),
        ('{oops\n{"question": 3}\n', "the first of 2 lines: q.jsonl:1: not JSON"),
    ],
)
def test_a_file_without_questions_is_an_error(tmp_path, lines, message):
    app = typer.Typer()
    app.command()(command.generate)
    (tmp_path / "q.jsonl").write_text(lines)
    arguments = ["--endpoint", "http://localhost:1/v1", "--model", "m", "--out", f"{tmp_path}/out"]
    result = CliRunner().invoke(app, [*arguments, "--questions", f"{tmp_path}/q.jsonl"])
    assert isinstance(result.exception, DataError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_requests_that_fail_make_the_command_fail_and_a_cap_does_not(tmp_path):
    app = typer.Typer()
    app.command()(command.generate)
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({"question": q.question, "verifier": q.verifier}) + "\n" for q in questions(5)))
    with Fake(lambda *_: (503, {}, "down")) as fake:
        options = ["--endpoint", fake.url, "--model", "m", "--questions", str(path), "--attempts", "1"]
        options += ["--concurrency", "2"]
        failed = CliRunner().invoke(app, [*options, "--out", f"{tmp_path}/a"])
        prices = ["--prompt-price", "1e9", "--max-cost", "1e-9"]
        capped = CliRunner().invoke(app, [*options, "--out", f"{tmp_path}/b", *prices])
    assert isinstance(failed.exception, DataError)
    assert "solutions: 20 requests are unfinished (503 down): run again" in str(failed.exception)
    assert capped.exit_code == 0
    assert "20 requests are unfinished (the cost cap is reached)" in capped.output
