"""Other targets than `make test-backends` collect these tests, too, where DeepSpeed may not be installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("deepspeed") else ["test_*.py"]
