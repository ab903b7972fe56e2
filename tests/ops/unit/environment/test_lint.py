"""The linter: each rule finds its own fault, and nothing in what is right."""

from contextlib import suppress
from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.environment.lint.facts import GONE, HARMFUL, RENAMED, UNREAD, Harm
from glmforge_ops.environment.lint.linter import Finding, lint_environment, lint_files
from glmforge_ops.environment.lint.reading import MAX_BYTES

ROOT = Path(__file__).parents[4]
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def lint(tmp_path: Path):
    """Findings in a file of this text."""

    def lint(text: str, name: str = "script.sh") -> list[Finding]:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return lint_files([path])

    return lint


def summary(findings: list[Finding]) -> list[tuple[int, str, str]]:
    return [(finding.line, finding.rule, finding.name) for finding in findings]


def test_own_scripts_and_examples_are_right() -> None:
    files = [*GOLDEN.glob("*.sh"), *(ROOT / "examples").rglob("*.s*"), *(ROOT / "scripts").glob("*.sh")]
    files = [path for path in files if path.suffix in (".sh", ".sbatch")]
    assert len(files) >= 12
    assert lint_files(files) == []


@pytest.mark.parametrize("name", [*UNREAD, *GONE])
def test_a_variable_that_nobody_reads_is_an_error_with_what_to_do(name: str, lint) -> None:
    (found,) = lint(f"#!/bin/bash\nexport {name}=1\n")
    assert (found.line, found.severity, found.name) == (2, "error", name)
    assert found.rule == ("unread" if name in UNREAD else "gone")
    assert found.instead == (UNREAD | GONE)[name]


@pytest.mark.parametrize("name", RENAMED)
def test_an_old_name_is_a_warning_that_names_the_new_one(name: str, lint) -> None:
    findings = [found for found in lint(f"export {name}=$X\n") if found.rule == "renamed"]
    assert [(found.severity, found.instead) for found in findings] == [("warning", RENAMED[name])]


@pytest.mark.parametrize("harm", HARMFUL, ids=lambda harm: f"{harm.name}={harm.example}")
def test_a_harmful_value_is_found(harm: Harm, lint) -> None:
    found = [found for found in lint(f"export {harm.name}={harm.example}\n") if found.rule == "harmful"]
    assert [(one.severity, one.problem, one.instead) for one in found] == [(harm.severity, harm.says, harm.instead)]


@pytest.mark.parametrize(
    "setting",
    [
        "NCCL_ALGO=^Tree",
        "NCCL_PROTO=^LL128",
        "NVIDIA_TF32_OVERRIDE=0",
        "CUDA_LAUNCH_BLOCKING=0",
        "NCCL_DEBUG=info",
        "NCCL_SOCKET_IFNAME=^lo,docker",
        "NCCL_SOCKET_IFNAME==eth0,eth1",
        "GLOO_SOCKET_IFNAME=eth0,eth1",
        "NCCL_IB_HCA=^=mlx5_3:1,mlx5_4",
        "NCCL_IB_HCA==mlx5_0::0:0",
        "OMP_NUM_THREADS=8,2",
        "NCCL_P2P_LEVEL=NVL",
        "NCCL_IB_GID_INDEX=-1",
        "PYTORCH_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:[64:8,>:1]",
        "NCCL_OFI_ANYTHING=1",
        "CUDA_VISIBLE_DEVICES=",
        "NCCL_NSOCKS_PERTHREAD=8",
        "TORCHINDUCTOR_ANYTHING=1",
        "NCCL_DEBUG=",
        "MY_OWN_VARIABLE=3",
        "NCCL_SOCKET_FAMILY=AF_INET6",
        "HF_TOKEN=$TOKEN",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
    ],
)
def test_what_is_right_is_not_found(setting: str, lint) -> None:
    assert lint(f"export {setting.replace('>', chr(92) + '>')}\n") == []


@pytest.mark.parametrize(
    "setting",
    [
        "NCCL_IB_TIMEOUT=32",
        "NCCL_IB_TIMEOUT=20s",
        "NCCL_IB_RETRY_CNT=8",
        "NCCL_SOCKET_NTHREADS=17",
        "NCCL_DEBUG=VERBOSE",
        "NCCL_P2P_DISABLE=yes",
        "NCCL_P2P_LEVEL=NVLINK",
        "NCCL_SOCKET_IFNAME=eth0,^docker",
        "GLOO_SOCKET_IFNAME=^docker",
        "NCCL_SOCKET_FAMILY=IPv4",
        "OMP_NUM_THREADS=0",
        "OMP_NUM_THREADS=auto",
        "MASTER_PORT=70000",
        "NCCL_NTHREADS=100",
        "PYTORCH_ALLOC_CONF=expandable_segments=True",
        "PYTORCH_ALLOC_CONF=max_split_size:512",
        "PYTORCH_ALLOC_CONF=expandable_segments:true",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=4",
        "TOKENIZERS_PARALLELISM=none",
        "NCCL_BUFFSIZE=4M",
        "CUBLAS_WORKSPACE_CONFIG=4096:8",
        "NCCL_IB_HCA=mlx5_0;mlx5_1",
    ],
)
def test_a_value_that_is_none_is_an_error(setting: str, lint) -> None:
    name = setting.partition("=")[0]
    quoted = setting.replace(";", r"\;").replace("^", "'^'")
    assert [(one.severity, one.rule, one.name) for one in lint(f"export {quoted}\n")] == [("error", "value", name)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_IFNAEM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SCOKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("GLOO_SOCKET_IFNANE", "GLOO_SOCKET_IFNAME"),
        ("OPM_NUM_THREADS", "OMP_NUM_THREADS"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("TORCH_NCCL_BLOCKING_WAITS", "TORCH_NCCL_BLOCKING_WAIT"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("TOKENIZER_PARALLELISM", "TOKENIZERS_PARALLELISM"),
        ("MASTER_ADRR", "MASTER_ADDR"),
    ],
)
def test_a_misspelt_name_is_an_error_that_names_the_known_one(written: str, meant: str, lint) -> None:
    (found,) = lint(f"export {written}=1\n")
    assert (found.severity, found.instead) == ("error", meant)


def test_a_name_of_the_scripts_own_is_not_misspelt(lint) -> None:
    assert lint('MASTER_ADDRS=1\necho "$MASTER_ADDRS"\n') == []


def test_an_unknown_name_of_a_family_that_is_known_in_full_is_a_warning(lint) -> None:
    (found,) = lint("export NCCL_MAKE_IT_FAST=1\n")
    assert (found.severity, found.rule) == ("warning", "unread")


def test_sockets_of_a_connection_are_counted_together(lint) -> None:
    text = "export NCCL_SOCKET_NTHREADS={}\nexport NCCL_NSOCKS_PERTHREAD={}\n"
    assert lint(text.format(8, 8)) == []
    (found,) = lint(text.format(8, 9))
    assert (found.line, found.rule) == (2, "value")
    assert "72" in found.problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export OMP_NUM_THREADS=8\nexport OMP_NUM_THREADS=4\n", [(2, "contradiction", "OMP_NUM_THREADS")]),
        ("export OMP_NUM_THREADS=8\nexport OMP_NUM_THREADS=8\n", []),
        ("export OMP_NUM_THREADS=8\nOMP_NUM_THREADS=4 python x\n", []),
        ("export OMP_NUM_THREADS=8\nexport OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}\n", []),
        ("if x; then\n  export NCCL_NET=IB\nelse\n  export NCCL_NET=Socket\nfi\n", []),
        ("case x in\n a) export NCCL_NET=IB ;;\n b) export NCCL_NET=Socket ;;\nesac\n", []),
        ("f() {\n export NCCL_NET=IB\n}\ng() {\n export NCCL_NET=Socket\n}\n", []),
        (
            "export NCCL_SOCKET_IFNAME=eth0\nexport NCCL_SOCKET_IFNAME=^docker\n",
            [(2, "contradiction", "NCCL_SOCKET_IFNAME")],
        ),
        (
            "export NCCL_SOCKET_IFNAME=^eth\nexport GLOO_SOCKET_IFNAME=eth0\n",
            [(2, "contradiction", "GLOO_SOCKET_IFNAME")],
        ),
        ("export NCCL_SOCKET_IFNAME=^=eth\nexport GLOO_SOCKET_IFNAME=eth0\n", []),
        ("export NCCL_IB_DISABLE=1\n", [(1, "harmful", "NCCL_IB_DISABLE")]),
        ("export NCCL_IB_DISABLE=1 NCCL_NET=Socket\n", []),
        ("export NCCL_IB_DISABLE=1 NCCL_NET=IB\n", [(1, "contradiction", "NCCL_IB_DISABLE")]),
        ("export NCCL_IB_DISABLE=1\nexport NCCL_IB_HCA=mlx5\n", [(1, "contradiction", "NCCL_IB_DISABLE")]),
        ("export NCCL_NET=Socket\nexport NCCL_IB_GID_INDEX=3\n", [(2, "contradiction", "NCCL_IB_GID_INDEX")]),
        ("export MKL_NUM_THREADS=2 OMP_NUM_THREADS=4\n", [(1, "contradiction", "MKL_NUM_THREADS")]),
        (
            "export HF_HUB_CACHE=/a\nexport HUGGINGFACE_HUB_CACHE=/b\n",
            [(2, "renamed", "HUGGINGFACE_HUB_CACHE"), (2, "contradiction", "HUGGINGFACE_HUB_CACHE")],
        ),
        ("NCCL_DEBUG=INFO\npython train.py\n", [(1, "not exported", "NCCL_DEBUG")]),
        ("NCCL_DEBUG=INFO\nexport NCCL_DEBUG\n", []),
        ("set -a\nNCCL_DEBUG=INFO\n", []),
        ("NCCL_DEBUG=INFO python train.py\n", []),
        ("export HF_TOKEN=hf_abc\n", [(1, "secret", "HF_TOKEN")]),
    ],
)
def test_variables_together(text: str, expected: list[tuple[int, str, str]], lint) -> None:
    assert summary(lint(text)) == expected


def test_a_secret_is_not_shown(lint) -> None:
    (found,) = lint("export HF_TOKEN=hf_abc\n")
    assert found.value is None
    assert "hf_abc" not in str(found)


def test_a_line_that_says_so_is_left_alone(lint) -> None:
    text = (
        "export NCCL_TIMEOUT=1 # env-lint: ignore\n# env-lint: ignore\nexport NCCL_TIMEOUT=1\nexport NCCL_TIMEOUT=1\n"
    )
    assert [found.line for found in lint(text)] == [4]


FILES = [
    ("train.sh", "#!/bin/bash\n#SBATCH --export=ALL,NCCL_TIMEOUT=3\n", 2),
    ("train.sh", "srun --export=ALL,NCCL_TIMEOUT=3 python x\n", 1),
    ("train.sh", "mpirun -np 2 \\\n  -x NCCL_DEBUG -x NCCL_TIMEOUT=3 prog\n", 1),
    ("train.sh", "docker run -e NCCL_TIMEOUT=3 image\n", 1),
    ("train.sh", "docker run --env=NCCL_TIMEOUT=3 image\n", 1),
    ("train.sh", "env NCCL_TIMEOUT=3 python x\n", 1),
    ("train.sh", 'echo start\n: "${NCCL_TIMEOUT:=3}"\n', 2),
    ("train.sh", 'x=$(echo "a)" \')\')\nexport NCCL_TIMEOUT="${NCCL_TIMEOUT:-3}"\n', 2),
    ("train.sh", "export A=1 \\\n  NCCL_TIMEOUT=3\n", 1),
    ("train.sh", "task='\nexport NCCL_TIMEOUT=3\n'\nsrun bash -c \"$task\"\n", 2),
    ("train.sh", "cat > e.sh <<EOF\n# x\nexport NCCL_TIMEOUT=3\nEOF\n", 3),
    ("train.sh", "if true; then export NCCL_TIMEOUT=3; fi\n", 1),
    ("train.sh", "declare -x NCCL_TIMEOUT=3\r\n", 1),
    ("job.sbatch", "export NCCL_TIMEOUT=3", 1),
    (".env", "# a comment\nNCCL_TIMEOUT = '3' # seconds\n", 2),
    ("cluster.env", "export NCCL_TIMEOUT=3\n", 1),
    ("Dockerfile", "FROM x\nENV A=1 \\\n    NCCL_TIMEOUT=3\n", 2),
    ("Dockerfile", "FROM x\nENV NCCL_TIMEOUT 3\n", 2),
    ("my.dockerfile", 'FROM x\nENV A="b c" NCCL_TIMEOUT="3"\n', 2),
    ("compose.yaml", "services:\n  a:\n    environment:\n      NCCL_TIMEOUT: 3\n", 4),
    ("compose.yml", "    environment:\n      - NCCL_TIMEOUT=3\n", 2),
    ("compose.yml", '    environment:\n      - "NCCL_TIMEOUT=3"\n', 2),
    ("job.yaml", "env:\n  - name: NCCL_TIMEOUT\n    value: '3'\n", 3),
    ("job.yaml", "run: |\n  export NCCL_TIMEOUT=3\n", 2),
]


@pytest.mark.parametrize(("name", "text", "line"), FILES)
def test_every_way_to_set_a_variable_is_read(name: str, text: str, line: int, lint) -> None:
    (found,) = lint(text, name)
    assert (found.line, found.rule, found.value) == (line, "unread", "3")


@pytest.mark.parametrize(
    "text",
    [
        "# export NCCL_TIMEOUT=3\n",
        "echo NCCL_TIMEOUT=3\n",
        'echo "set NCCL_TIMEOUT=3"\n',
        '[[ $NCCL_TIMEOUT=3 ]]\n[ "$X" = NCCL_TIMEOUT=3 ]\n',
        "grep NCCL_TIMEOUT=3 file\n",
        "python train.py --nccl_timeout=3\n",
    ],
)
def test_what_only_looks_like_a_setting_is_not_one(text: str, lint) -> None:
    assert lint(text) == []


def test_values_that_the_script_computes_are_not_judged(lint) -> None:
    assert lint("export NCCL_IB_TIMEOUT=$T OMP_NUM_THREADS=$(nproc) NCCL_DEBUG=`x` NCCL_NET=${N}\n") == []


HOSTILE = {
    "null": (b"export A=1\n\0", "null bytes"),
    "binary": (bytes(range(1, 256)) * 40, "not UTF-8"),
    "utf-16": ("export NCCL_TIMEOUT=1\n".encode("utf-16"), "not UTF-8"),
    "huge": (b"#" * (MAX_BYTES + 1), "more than"),
    "quotes": (b'$("`\n' * 300, "quotes without an end"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_is_no_script_is_one_line(kind: str, tmp_path: Path) -> None:
    content, message = HOSTILE[kind]
    path = tmp_path / "a.sh"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        lint_files([path])
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["none.sh", "."])
def test_a_path_without_a_file_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        lint_files([tmp_path / name])


def test_control_characters_are_shown_as_escapes(lint) -> None:
    (found,) = lint("export NCCL_DEBUG=\x1b[31mWARN\x07\n")
    assert found.value is not None
    assert found.value.isprintable()


@pytest.mark.parametrize(
    "text", ["<<A\n" * 9000, "'" * 99_999, "${" * 50_000, "A=" * 50_000, "(" * 90_000, "\\" * 90_001]
)
@pytest.mark.parametrize("name", ["a.sh", "a.yaml", "Dockerfile", ".env"])
def test_odd_text_ends(text: str, name: str, lint) -> None:
    """With nothing found, or one line; neither a traceback nor a time that grows with the square of the text."""
    with suppress(ConfigError):
        assert lint(text, name) == []


def test_a_process_may_have_secrets_and_names_of_its_own() -> None:
    environment = {
        "HF_TOKEN": "hf_abc",
        "MASTER_ADDRS": "x",
        "PATH": "/bin",
        "NCCL_TIMEOUT": "3",
        "NCCL_DEBUG": "TRACE",
    }
    assert [(one.name, one.severity, one.line) for one in lint_environment(environment)] == [
        ("NCCL_TIMEOUT", "error", 0),
        ("NCCL_DEBUG", "warning", 0),
    ]
