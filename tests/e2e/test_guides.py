"""The guides, command by command as they stand there, on the data that they make: see `helpers.guide`."""

import shutil
from pathlib import Path

import pytest

from glmforge_ops.dev import DevCluster
from helpers.dev_cluster import hosts_or_skip, install_slurm_or_skip
from helpers.guide import GUIDES, Command, File, Launch, carry_out, check_launch, parsed, read_guide, unknown_commands

BASE = "pre-training.md"
ADAPTING = (
    pytest.param("mid-training.md", marks=pytest.mark.guides),
    pytest.param("lora.md", marks=pytest.mark.guides),
    "fine-tuning.md",
)
ON_HOSTS = "infrastructure.md"
ON_SLURM = ("slurm.md", "recovery.md")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader is who has made a base model."""
    directory = tmp_path_factory.mktemp("base")
    carry_out(BASE, directory)
    return directory


@pytest.mark.parametrize("guide", ADAPTING)
def test_a_guide_does_what_it_says(guide: str, base: Path, tmp_path: Path) -> None:
    if guide == "lora.md":
        pytest.importorskip("peft")  # loads the adapter
    shutil.copytree(base, tmp_path, symlinks=True, dirs_exist_ok=True)
    carry_out(guide, tmp_path)


@pytest.mark.guides
def test_the_guide_to_infrastructure_does_what_it_says(short_path: Path) -> None:
    hosts_or_skip()
    try:
        carry_out(ON_HOSTS, short_path)
    finally:
        if (short_path / "lab").exists():
            DevCluster.end(short_path / "lab")


@pytest.mark.guides
@pytest.mark.parametrize("guide", ON_SLURM)
def test_a_guide_to_jobs_does_what_it_says(guide: str, base: Path, short_path: Path) -> None:
    hosts_or_skip()
    install_slurm_or_skip()
    shutil.copytree(base, short_path, symlinks=True, dirs_exist_ok=True)
    try:
        carry_out(guide, short_path)
    finally:
        if (short_path / "lab").exists():
            DevCluster.end(short_path / "lab")


def test_every_guide_is_followed() -> None:
    assert {path.name for path in GUIDES.glob("*.md")} == {
        BASE,
        "mid-training.md",
        "fine-tuning.md",
        "lora.md",
        ON_HOSTS,
        *ON_SLURM,
    }


@pytest.mark.parametrize("path", sorted(GUIDES.glob("*.md")), ids=lambda path: path.stem)
def test_commands_named_in_passing_exist(path: Path) -> None:
    assert unknown_commands(path) == []


def test_what_is_read_from_a_guide(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(
        "# A guide\n\nA file, `a.yaml`:\n\n```yaml\nx: 1\n```\n\n```console\n$ one \\\n    --two\nshown\n$ three\n"
        "...\nglmforge: refused\n```\n\n```sh\n# on 16 nodes\nsrun --nodes 16 \\\n    glmforge train a.yaml\n```\n"
        "`glmforge train`, `glmforge data chat F`, `glmforge trian`\n",
        "utf-8",
    )
    steps = [
        File(5, "a.yaml", "x: 1\n"),
        Command(10, "one \\\n    --two", "shown"),
        Command(13, "three", "...\nglmforge: refused"),
        Launch(19, "srun --nodes 16 glmforge train a.yaml"),
    ]
    assert read_guide(guide) == steps
    assert [step.status for step in steps if isinstance(step, Command)] == [0, 1]
    assert unknown_commands(guide) == ["trian"]
    guide.write_text("```python\nprint()\n```\n", "utf-8")
    with pytest.raises(ValueError, match=r"guide\.md:1: a block"):
        read_guide(guide)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("...\nglmforge: refused", "status 0"),
        ("another text", "instead of"),
        ("", ""),
        ("a ... text", ""),
    ],
)
def test_a_command_is_held_to_what_is_shown(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = tmp_path / "guides"
    guides.mkdir()
    (guides / "one.md").write_text(f"```console\n$ echo a long text\n{text}\n```\n", "utf-8")
    monkeypatch.setattr("helpers.guide.GUIDES", guides)
    if problem:
        with pytest.raises(AssertionError, match=problem):
            carry_out("one.md", tmp_path)
    else:
        carry_out("one.md", tmp_path)


def test_a_launch_is_held_to_the_program(tmp_path: Path) -> None:
    words = ["--nodes", "16", "--ntasks-per-node", "8", "glmforge", "train"]
    shipped = Path(__file__).parents[2] / "configs" / "midtrain_code.yaml"
    check_launch(["srun", *words, str(shipped)], tmp_path, "here")
    with pytest.raises(Exception, match="no_such_key"):
        check_launch(["srun", *words, str(shipped), "optim.no_such_key=1"], tmp_path, "here")
    with pytest.raises(Exception, match="does not divide the 24 processes"):
        check_launch(["srun", "--nodes", "3", *words[2:], str(shipped)], tmp_path, "here")
    with pytest.raises(Exception, match="No such option: --no-such-option"):
        parsed(["train", "a.yaml", "--no-such-option"])
