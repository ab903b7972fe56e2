"""How ranks get into a container: by srun's plugin pyxis, or as a program that Apptainer starts.

Inside, the places named here have the same paths as outside. Apptainer adds the user's home and passes on the
environment. Users name what else a run reads, such as its data: in APPTAINER_BIND, or in enroot's mounts.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path


def is_apptainers(image: str) -> bool:
    """Whether it is a file that only Apptainer reads."""
    return image.endswith(".sif")


def in_apptainer(image: str, places: Iterable[Path], *, gpus: bool) -> list[str]:
    """What stands before the command of a rank."""
    binds = [word for place in _distinct(places) for word in ("--bind", place)]
    return ["apptainer", "exec", *(["--nv"] if gpus else []), *binds, image]


def by_pyxis(image: str, places: Sequence[Path]) -> list[str]:
    """Options of srun. The command runs in the first of the places."""
    mounts = ",".join(f"{place}:{place}" for place in _distinct(places))
    return [
        f"--container-image={image}",
        *([f"--container-mounts={mounts}", f"--container-workdir={places[0]}"] if places else []),
    ]


def _distinct(places: Iterable[Path]) -> list[str]:
    return list(dict.fromkeys(str(place.absolute()) for place in places))
