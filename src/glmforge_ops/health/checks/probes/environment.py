"""What a job finds on a node: its Python with glmforge, and the variables of a login."""

import json
import subprocess

_LIMIT_S = 18
_ASK = "import glmforge, json; print(json.dumps({'file': glmforge.__file__}))"


def gather(cluster: dict) -> dict:
    found: dict = {"file": None, "reason": None, "status": None, "variables": _login_variables()}
    try:
        done = subprocess.run(
            ["sh", "-lc", 'exec "$1" -c "$2"', "sh", cluster["python"], _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        found.update(json.loads(lines[-1]) if lines else {})
        found["status"] = done.returncode
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            found["reason"] = said[-1] if said else f"status {done.returncode}"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        found["reason"] = str(error)
    return found


def _login_variables() -> "dict | None":
    """Of a login shell, as jobs started through ssh or Slurm may inherit them."""
    try:
        done = subprocess.run(
            ["sh", "-lc", "env -0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    pairs = (entry.partition("=") for entry in done.stdout.decode(errors="replace").split("\0"))
    return {name: value[:1000] for name, _, value in pairs if name and _is_ours(name)}


def _is_ours(name: str) -> bool:
    """Nothing else leaves the node: variables hold secrets."""
    secret = any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSW"))
    prefixes = ("NCCL_", "GLOO_", "CUDA_", "CUDNN_", "TORCH_", "PYTORCH_", "NVIDIA_", "OMP_", "MKL_", "UCX_", "TRITON_")
    others = ("LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "TRANSFORMERS_CACHE", "TOKENIZERS_PARALLELISM")
    return not secret and (name.startswith(prefixes) or name in others)
