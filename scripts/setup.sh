#!/usr/bin/env bash
# Make .venv with everything the project needs to run, test and lint. Safe to run again: does nothing when up to date.
#
#   PYTHON=python3.12 scripts/setup.sh      another interpreter (3.11 or newer)
#   TORCH=2.11.0 scripts/setup.sh           another torch, e.g. the CUDA build that a cluster has
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
stamp=.venv/.glmforge-setup
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum)

[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

install_debian() { # what to install, and what for
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing $1 ($2)"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $1 >/dev/null
    else
        echo "setup: $1 is missing ($2): install it, then run this again" >&2
        return 1
    fi
}

command -v "$python" >/dev/null || install_debian "python3 python3-venv" "Python itself"
"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"setup: Python {sys.version.split()[0]} is too old; set PYTHON to 3.11 or newer")
PY
"$python" -c "import ensurepip, venv" 2>/dev/null || install_debian python3-venv "virtual environments"
command -v g++ >/dev/null || install_debian g++ "torch.compile on the CPU"
command -v bwrap >/dev/null || install_debian bubblewrap "a sandbox for programs that models write" ||
    echo "setup: going on without it; benchmarks of code will not run" >&2

[ -x .venv/bin/python ] || "$python" -m venv .venv
constraints=constraints.txt
if [ -n "${TORCH:-}" ]; then
    constraints=.venv/constraints.txt
    sed "s/^torch==.*/torch==$TORCH/" constraints.txt >"$constraints"
fi
echo "setup: installing glmforge and its tools into .venv (a minute or more the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c "$constraints" -e '.[dev]'
# What pip does on one core, on all. Packages hold files for other versions of Python, which cannot be compiled.
.venv/bin/python -m compileall -qq -j 0 .venv/lib || true
echo "$wanted" >"$stamp"
