"""Cases: a valid original with one damage, made from (format, seed, number) or the name of a bomb alone."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from fuzz.format import Format

_DIRECTORY_SHARE = 0.05  # of the cases damage the directory instead of a file's content


class Original:
    """A directory of a format that is damaged and restored, case by case."""

    def __init__(self, form: Format, directory: Path) -> None:
        self.form, self.directory = form, directory
        directory.mkdir()
        form.write(directory)
        self.contents = {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        self.damaged = [name for name in self.contents if form.mutator(name) is not None]

    def damage(self, case: str, seed: int) -> None:
        """Make the case: a number, or a bomb's name."""
        if not case.isdecimal():
            self.form.bombs[case](self.directory)
            return
        rng = Random(f"{self.form.name}/{seed}/{case}")
        name = rng.choice(self.damaged)
        path = self.directory / name
        if self.form.damages_directory and rng.random() < _DIRECTORY_SHARE:
            rng.choice(_DIRECTORY_CHANGES)(path, rng, [self.directory / other for other in self.contents])
            return
        mutator = self.form.mutator(name)
        assert mutator is not None
        path.write_bytes(mutator(self.contents[name], rng))

    def restore(self) -> None:
        """The valid directory again, whatever the case did to it."""
        shutil.rmtree(self.directory)
        for name, content in self.contents.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


_Change = Callable[[Path, Random, Sequence[Path]], None]


def _remove(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.unlink()


def _empty(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.write_bytes(b"")


def _fill(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 8, 100, 10_000))))


def _make_huge(path: Path, rng: Random, others: Sequence[Path]) -> None:
    """A hole of 64 GiB at the end, which takes no place on the disk."""
    os.truncate(path, 1 << 36)


def _replace(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.write_bytes(rng.choice(others).read_bytes())


def _make_directory(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.unlink()
    path.mkdir()


def _make_fifo(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, rng: Random, others: Sequence[Path]) -> None:
    path.unlink()
    path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/proc/self/mem", path.name, "absent", ".", "/")))


_DIRECTORY_CHANGES: tuple[_Change, ...] = (
    *(_remove, _empty, _fill, _make_huge, _replace, _make_directory, _make_fifo, _link),
)
