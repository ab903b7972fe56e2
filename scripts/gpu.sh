#!/usr/bin/env bash
# Test and measure on one GPU, with what is installed: nothing is fetched from a network. See docs/gpu.md.
#
#   scripts/gpu.sh all                     every part; results go to gpu-results/ (--out DIR for another folder)
#   scripts/gpu.sh kernels --minutes 4     one part of tests, kernels, step, memory, engine
#   scripts/gpu.sh all --dry               the same code on the CPU in small sizes, about two minutes
#   scripts/gpu.sh wheels                  beforehand, with a network: carry what a GPU machine lacks to .wheels/
#   scripts/gpu.sh keep --out DIR          take results of another machine over into benchmarks/results/
#
# PYTHON names the interpreter (else .venv's or python3, whichever has torch); --wheels DIR or WHEELS other wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

wheels=${WHEELS:-.wheels}
arguments=()
dry=
while [ $# -gt 0 ]; do
    case $1 in
        --wheels) wheels=${2:?--wheels needs a folder}; shift ;;
        --dry) dry=1; arguments+=("$1") ;;
        *) arguments+=("$1") ;;
    esac
    shift
done

carry() { # what glmforge needs beyond torch, numpy, PyYAML, typer, rich, tokenizers, safetensors and jinja2
    local python=${PYTHON:-python3} packages
    packages=$(sed -nE 's/^(pydantic|pydantic_core|annotated-types|typing-inspection|typing_extensions)==.*/&/p' constraints.txt)
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --dest "$wheels" $packages
    ls -1 "$wheels"
}

has_torch() { "$1" -c "import sys, torch; sys.exit(not (${dry:-0} or torch.cuda.is_available()))" 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-.venv/bin/python python3 python}; do
        if command -v "$candidate" >/dev/null && has_torch "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "gpu.sh: no Python with torch${dry:+ (dry)} and a GPU among ${PYTHON:-.venv/bin/python, python3, python}; name one in PYTHON" >&2
    exit 1
}

# Wheels are unpacked rather than installed, last on the path: what the machine has of its own comes first.
unpack() {
    local python=$1 wheel
    for wheel in "$wheels"/*.whl; do
        "$python" -m zipfile -e "$wheel" "$carried"
    done
}

if [ "${arguments[0]:-}" = wheels ]; then
    carry
    exit
fi

python=$(find_python)
[ -z "$dry" ] || export TRITON_INTERPRET=1 # without a GPU, Triton's kernels are run by its interpreter
carried=$(mktemp -d)
trap 'rm -rf "$carried"' EXIT
path=$PWD/src:$PWD/benchmarks:$PWD/tests
if ! "$python" -c "import pydantic" 2>/dev/null; then
    if compgen -G "$wheels/*.whl" >/dev/null; then
        unpack "$python"
        path=$path:$carried
    fi
fi
PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 "$python" -m gpu "${arguments[@]}"
