"""A bundle of a run: 100 planted secrets are gone, what explains it is there, a hostile directory does no harm."""

import base64
import json
import os
import random
import string
import tarfile
from pathlib import Path

import pytest
import yaml

from glmforge.doctor.bundle import BundleError, make_bundle
from glmforge.doctor.redact import Redactor

LETTERS = string.ascii_letters + string.digits
GIT, SHA256 = (
    "b2540b71c0ffee00112233445566778899aabbcc",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
)


def secrets_and_texts(seed: int = 0) -> list[tuple[str, str]]:
    """(secret, a text that has it): 50 different forms."""
    draw = random.Random(seed)

    def word(length: int, letters: str = LETTERS) -> str:
        return "".join(draw.choices(letters, k=length - 3)) + "aZ7"

    forms: list[tuple[str, str]] = []

    def add(secret: str, text: str) -> None:
        forms.append((secret, text.replace("@@", secret)))

    add("AKIA" + "".join(draw.choices(string.ascii_uppercase + string.digits, k=16)), "using @@ for s3")
    add("ASIA" + "".join(draw.choices(string.ascii_uppercase + string.digits, k=16)), "session @@")
    add(word(40), "aws configure set @@")
    add(word(40), "AWS_SECRET_ACCESS_KEY=@@")
    add(word(60), "export AWS_SESSION_TOKEN='@@'")
    add("hf_" + word(34), "huggingface-cli login @@")
    add("hf_" + word(34), "HUGGING_FACE_HUB_TOKEN: @@")
    for kind in "posur":
        add(f"gh{kind}_" + word(36), "remote: @@")
    add("github_pat_" + word(60), "git clone with @@")
    add("glpat-" + word(20), "ci @@")
    add("xoxb-123456789012-" + word(24), "slack @@")
    add("sk-proj-" + word(40), "openai @@")
    add("sk-ant-api03-" + word(60), "anthropic @@")
    add("AIza" + word(35), "google @@")
    add("ya29." + word(40), "gcloud @@")
    add("npm_" + word(36), "npm @@")
    add("pypi-" + word(60), "twine @@")
    add(f"eyJ{word(20)}.eyJ{word(30)}.{word(43)}", "jwt @@")
    add(word(40, "0123456789abcdef").replace("aZ7", "abc"), "wandb: logging in with key @@")
    add(word(40, "0123456789abcdef").replace("aZ7", "abc"), "WANDB_API_KEY=@@")
    add(word(30), "Authorization: Bearer @@")
    add(word(30), "curl -H 'authorization: token @@' x")
    add(base64.b64encode(f"user:{word(12)}".encode()).decode(), "Authorization: Basic @@")
    add(word(24), "got bearer @@ from the proxy")
    add(word(14), "https://deploy:@@@git.example.com/team/repo.git")
    add(word(20), "https://@@@github.com/team/repo.git")
    add(word(16), "postgresql://runs:@@@db:5432/metrics")
    add(word(16), "redis://:@@@cache:6379/0")
    add(word(12), "http_proxy=http://me:@@@proxy:3128")
    add(word(12), "password: @@")
    add(word(12), "passwd=@@ host=db")
    add("correct horse battery " + word(8), "db_passphrase: @@")
    add(word(18), '{"api_key": "@@"}')
    add(word(18), "--api-key @@ --port 80")
    add(word(18), "--hub-token=@@")
    add(word(18), "client_secret = '@@'")
    add(word(20), "X-Api-Key: @@")
    add(word(30), "Cookie: session=@@; path=/")
    add(word(44), "https://blob.example.net/a?sv=2024&sig=@@")
    add(word(44), "AccountKey=@@;EndpointSuffix=core")
    add(word(30), "https://s3/a?X-Amz-Signature=@@&x=1")
    add(word(12), "machine api.wandb.ai login user password @@")
    add(word(12), "sshpass -p @@ ssh node1")
    add(word(12), "curl -u admin:@@ http://x")
    add(word(24), "https://hooks.slack.com/services/T0/B0/@@")
    add(word(24), "GRAFANA_ADMIN_PWD=@@")
    add(word(200), "-----BEGIN RSA PRIVATE KEY-----\n@@\n-----END RSA PRIVATE KEY-----")
    add(word(200), "-----BEGIN OPENSSH PRIVATE KEY-----\\n@@\\n-----END OPENSSH PRIVATE KEY-----")
    return forms


def write_run(root: Path, plants: list[tuple[str, str]]) -> list[str]:
    """A run with a secret in every kind of place; the secrets."""
    (root / "logs").mkdir(parents=True)
    (root / "hangs").mkdir()
    texts = [text for _, text in plants]
    secrets = [secret for secret, _ in plants]
    parts = [texts[number::5] for number in range(5)]
    (root / "config.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "demo",
                "notes": parts[0],
                "env": {"PLAIN_NAME": "value-of-env-1", "OTHER": "value-of-env-2"},
                "endpoint": {"credentials": {"user": "value-below-name", "list": ["value-in-list"]}},
                "lr": 3e-4,
                "num_key_value_heads": 8,
                "max_new_tokens": 64,
                "end_token_ids": [1, 2],
            }
        )
    )
    (root / "run.json").write_text(json.dumps({"git_revision": GIT, "remotes": parts[1], "name": "demo"}))
    events = [{"time": "2026-11-25T10:00:00Z", "step": 1, "event": "started", "detail": text} for text in parts[2]]
    (root / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"cut": "tok')
    (root / "metrics.jsonl").write_text(f'{{"step": 7, "loss": 2.5, "tokens": 4096, "digest": "{SHA256}"}}\n')
    (root / "logs" / "rank-00000.log").write_text("\n".join([f"line {n}" for n in range(3000)] + parts[3]) + "\n")
    (root / "hangs" / "20261125T100000Z-rank-00000.txt").write_text("\n".join(parts[4]))
    return [*secrets, "value-of-env-1", "value-of-env-2", "value-below-name", "value-in-list"]


def unpacked(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        files = {member.name.split("/", 1)[1]: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_none_of_100_secrets_is_in_the_bundle(tmp_path: Path) -> None:
    secrets = write_run(tmp_path / "run", secrets_and_texts(1) + secrets_and_texts(2)[::-1])
    in_environment = "swordfish-of-the-environment"
    with (tmp_path / "run" / "logs" / "rank-00000.log").open("a") as log:
        log.write(f"said without a name {in_environment}\n")
    assert len(set(secrets)) >= 100
    path, _ = make_bundle(tmp_path / "run", tmp_path / "b.tar.gz", redactor=Redactor({"DB_PASSWORD": in_environment}))
    found = unpacked(path)
    everything = "\n".join(found.values())
    assert [secret for secret in [*secrets, in_environment] if secret in everything] == []
    about = json.loads(found["bundle.json"])
    assert about["secrets_removed"] >= 100
    assert path.stat().st_mode & 0o077 == 0


def test_what_is_no_secret_stays(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    found = unpacked(make_bundle(tmp_path / "run", tmp_path / "b.tar.gz")[0])
    config = yaml.safe_load(found["config.yaml"])
    assert (config["lr"], config["num_key_value_heads"], config["max_new_tokens"]) == (3e-4, 8, 64)
    assert config["end_token_ids"] == [1, 2]
    assert json.loads(found["run.json"])["git_revision"] == GIT
    assert json.loads(found["metrics.jsonl"]) == {"step": 7, "loss": 2.5, "tokens": 4096, "digest": SHA256}
    assert found["logs/rank-00000.log"].splitlines() == [f"line {n}" for n in range(2000, 3000)]


@pytest.mark.parametrize(
    "text",
    [
        f"resuming from {GIT}, sha256 {SHA256}",
        "step 12: loss 2.31, tokens 4,096, tokens_per_second: 1234.5, tokenizer: runs/demo/tokenizer",
        "author: Jane, num_key_value_heads=8, pad_token_id: 0, grad_norm=1.0e-3, keys: none",
        "https://github.com/team/repo.git at runs/demo/checkpoints/step-00000120",
        "token embeddings of a basic model, authentication is off",
    ],
)
def test_ordinary_lines_are_as_they_were(text: str) -> None:
    assert Redactor({}).text(text) == text


def test_a_hostile_directory(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("not of this run")
    run = tmp_path / "run"
    write_run(run, [])
    (run / "skipped.json").symlink_to(outside)
    (run / "logs" / "rank-00001.log").symlink_to(outside)
    (run / "time.jsonl").unlink(missing_ok=True)
    os.mkfifo(run / "time.jsonl")
    with (run / "logs" / "rank-00002.log").open("wb") as huge:
        huge.truncate(1 << 40)  # sparse
    (run / "hangs" / "20261125T100000Z-rank-00000.txt").unlink()
    (run / "hangs").rmdir()
    (run / "hangs").symlink_to(tmp_path)
    (run / "config.yaml").write_text("a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]\n")
    (run / "evaluation.jsonl").write_text('{"a":' * 5000 + "\n" + "x_" * 500_000 + "password" * 50_000 + "\n")
    path, bundle = make_bundle(run, tmp_path / "b.tar.gz")
    assert "not of this run" not in "\n".join(unpacked(path).values())
    assert {"skipped.json", "logs/rank-00001.log", "time.jsonl", "hangs/"} <= bundle.left_out.keys()
    assert path.stat().st_size < 8 << 20
    assert [each.name for each in tmp_path.glob(".*partial*")] == []
    with pytest.raises(BundleError, match="already exists"):
        make_bundle(run, path)


def test_half_a_key_at_the_beginning_of_a_log_goes_too() -> None:
    text = "MIIEpAIBAAKCAQEA\nMIIEpAIBAAKCAQEB\n-----END RSA PRIVATE KEY-----\nstep 1"
    assert Redactor({}).text(text) == "***\nstep 1"
