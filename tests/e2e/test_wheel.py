"""What is in the wheel: an installation without the source tree has all that the program reads."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "configs", "examples", "pyproject.toml", "README.md", "LICENSE")
_LIMIT_S = 300


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that the wheel is installed in; all other packages are this environment's."""
    directory = tmp_path_factory.mktemp("wheel")
    tree = directory / "tree"
    tree.mkdir()
    # What git has, as a fresh clone: neither caches nor what an earlier build has left.
    names = run("git", "ls-files", "-co", "--exclude-standard", *SOURCES, cwd=ROOT).splitlines()
    for name in names:
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, tree / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, ".", cwd=tree)
    (wheel,) = directory.glob("glmforge-*.whl")
    venv.create(directory / "venv", with_pip=False)
    installed = directory / "venv" / "bin" / "python"
    run(*pip, "--python", installed, "install", "--no-deps", "--no-index", wheel, cwd=directory)
    site = Path(run(installed, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory).strip())
    (site / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return installed


def copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        target.write_bytes(source.read_bytes())


def test_configurations_and_examples_are_in_it(python: Path, tmp_path: Path) -> None:
    place = run(python, "-c", "import glmforge; print(glmforge.__file__)", cwd=tmp_path).strip()
    assert Path(place).is_relative_to(python.parents[1])  # and not the source tree's
    packaged = Path(place).parent / "packaged"
    names = run("git", "ls-files", "configs", "examples", cwd=ROOT).splitlines()
    assert names
    assert [name for name in names if not (packaged / name).is_file()] == []


def test_the_chat_page_is_in_it(python: Path, tmp_path: Path) -> None:
    place = run(python, "-c", "import glmforge.deploy; print(glmforge.deploy.__file__)", cwd=tmp_path).strip()
    page = "src/glmforge/deploy/page"
    names = run("git", "ls-files", page, cwd=ROOT).splitlines()
    assert f"{page}/vendor/purify.min.js" in names
    installed = Path(place).parent / "page"
    assert [name for name in names if not (installed / Path(name).relative_to(page)).is_file()] == []


def test_they_are_listed_copied_and_launched(python: Path, tmp_path: Path) -> None:
    glmforge = python.parent / "glmforge"
    assert "examples/slurm" in run(glmforge, "configs", "list", cwd=tmp_path)
    run(glmforge, "configs", "copy", "midtrain_32k", "own", cwd=tmp_path)
    shown = run(glmforge, "launch", "own/midtrain_32k.yaml", "--launcher", "slurm", "--nodes", "16",
                "--gpus-per-node", "8", "--dry-run", cwd=tmp_path)  # fmt: skip
    assert f"{python} -m glmforge supervise" in shown
    assert "#SBATCH --nodes=16" in shown
