"""Known-bad settings are found in every kind of file, and nothing else is."""

from contextlib import suppress
from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.environment.lint import MAX_BYTES, Finding, known_bad, lint_environment, lint_files

ROOT = Path(__file__).parents[4]


@pytest.fixture
def lint(tmp_path: Path):
    def lint(text: str, name: str = "train.sh") -> list[Finding]:
        (tmp_path / name).write_bytes(text.encode("utf-8"))
        return lint_files([tmp_path / name])

    return lint


@pytest.mark.parametrize("row", known_bad(), ids=lambda row: f"{row.name}={row.example}")
def test_every_row_finds_its_example(row, lint) -> None:
    value = row.example or "a:1"
    found = lint(f"export {row.name}='{value}'\n")[0]
    assert (found.severity, found.problem, found.instead) == (row.severity, row.why, row.instead)


@pytest.mark.parametrize(
    "setting",
    [
        "NCCL_ALGO=^Tree",
        "NCCL_PROTO=^LL128",
        "NVIDIA_TF32_OVERRIDE=0",
        "CUDA_LAUNCH_BLOCKING=",
        "NCCL_DEBUG=info",
        "NCCL_SOCKET_IFNAME=^lo,docker",
        "GLOO_SOCKET_IFNAME=eth0,eth1",
        "OMP_NUM_THREADS=8,2",
        "NCCL_IB_TIMEOUT=22",
        "PYTORCH_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:[64:8,>:1]",
        "PYTORCH_ALLOC_CONF=max_split_size_mb:512",
        "MY_OWN_VARIABLE=3",
        "HF_TOKEN=$TOKEN",
        "OMP_NUM_THREADS=$(nproc)",
        "NCCL_IB_TIMEOUT=$T",
    ],
)
def test_good_and_computed_values_pass(setting: str, lint) -> None:
    name, _, value = setting.partition("=")
    assert lint(f'export {name}="{value}"\n') == []


FILES = [
    ("train.sh", "#!/bin/bash\n#SBATCH --export=ALL,NCCL_TIMEOUT=3\n", 2),
    ("train.sh", "srun --export=ALL,NCCL_TIMEOUT=3 python x\n", 1),
    ("train.sh", "mpirun -np 2 \\\n  -x NCCL_DEBUG -x NCCL_TIMEOUT=3 prog\n", 2),
    ("train.sh", "docker run --env=NCCL_TIMEOUT=3 image\n", 1),
    ("train.sh", "env NCCL_TIMEOUT=3 python x\n", 1),
    ("train.sh", "if true; then export NCCL_TIMEOUT='3'; fi\r\n", 1),
    (".env", "# a comment\nNCCL_TIMEOUT=3 # seconds\n", 2),
    ("Dockerfile", "FROM x\nENV A=1 \\\n    NCCL_TIMEOUT=3\n", 3),
    ("Dockerfile", "FROM x\nENV NCCL_TIMEOUT 3\n", 2),
    ("compose.yaml", "services:\n  a:\n    environment:\n      NCCL_TIMEOUT: 3\n", 4),
    ("compose.yml", '    environment:\n      - "NCCL_TIMEOUT=3"\n', 2),
]


@pytest.mark.parametrize(("name", "text", "line"), FILES)
def test_every_plain_way_to_set_a_variable_is_read(name: str, text: str, line: int, lint) -> None:
    (found,) = lint(text, name)
    assert (found.line, found.value) == (line, "3")


@pytest.mark.parametrize(
    "text",
    [
        "# export NCCL_TIMEOUT=3\n",
        "echo NCCL_TIMEOUT=3\n",
        '[ "$X" = NCCL_TIMEOUT ]\n',
        "python train.py --nccl_timeout=3\n",
        "export NCCL_TIMEOUT=3 # env-lint: ignore\n",
        "# env-lint: ignore\nexport NCCL_TIMEOUT=3\n",
    ],
)
def test_comments_messages_and_ignored_lines_pass(text: str, lint) -> None:
    assert lint(text) == []


def test_a_secret_is_found_and_not_shown(lint) -> None:
    (found,) = lint("export HF_TOKEN=hf_abc\n")
    assert "hf_abc" not in str(found)


def test_control_characters_are_escaped(lint) -> None:
    (found,) = lint("export NCCL_ALGO=\x1b[31mTree\x07\n")
    assert found.value is not None
    assert found.value.isprintable()


HOSTILE = {
    "null": (b"export A=1\n\0", "null bytes"),
    "utf-16": ("export NCCL_TIMEOUT=1\n".encode("utf-16"), "not UTF-8"),
    "huge": (b"#" * (MAX_BYTES + 1), "more than"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_is_not_a_script_is_one_line(kind: str, tmp_path: Path) -> None:
    content, message = HOSTILE[kind]
    path = tmp_path / "a.sh"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        lint_files([path])
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["'" * 99_999, "A=" * 50_000, "A" * 90_000, "name:" * 20_000, ' "' * 40_000])
def test_odd_text_ends(text: str, lint) -> None:
    with suppress(ConfigError):
        assert lint(text) == []


def test_a_process_may_hold_secrets() -> None:
    environment = {"HF_TOKEN": "hf_abc", "PATH": "/bin", "NCCL_TIMEOUT": "3", "NCCL_DEBUG": "TRACE"}
    assert [(one.name, one.severity, one.line) for one in lint_environment(environment)] == [
        ("NCCL_TIMEOUT", "error", 0),
        ("NCCL_DEBUG", "warning", 0),
    ]


def test_shipped_scripts_are_clean() -> None:
    scripts = [*(ROOT / "examples").rglob("*.sbatch"), *(ROOT / "examples").rglob("*.sh")]
    assert scripts
    assert lint_files(scripts) == []
