"""Errors that the user can fix.

Every error of this family carries one line that names the thing (a file, a field, a value) and the fix. The
command line prints that line and exits with status 1; everything else is a defect and keeps its traceback.
"""


class GlmforgeError(ValueError):
    """Base of all errors that a user can fix; `str(error)` is one line naming the thing and the fix."""

    exit_code = 1
    """Status with which the command line ends."""


class ConfigError(GlmforgeError):
    """A run configuration that cannot be: unknown key, wrong value or an impossible combination."""


class DataError(GlmforgeError):
    """A corpus, tokenizer or token shard that cannot be used."""


class CheckpointError(GlmforgeError):
    """A checkpoint that is missing, incomplete, or does not fit the run that needs to load it."""


class HostError(GlmforgeError):
    """A machine that cannot be reached, or cannot do what is requested."""


class LaunchError(GlmforgeError):
    """A job that cannot be started, found or controlled."""
