"""Limits of a process of this user."""

import resource


def gather(cluster: dict) -> dict:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"open_files": _number(soft), "open_files_hard": _number(hard)}


def _number(limit: int) -> "int | None":
    return None if limit == resource.RLIM_INFINITY else limit
