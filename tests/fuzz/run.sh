#!/bin/sh
# Fuzzes the compiled kernel under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#     tests/fuzz/run.sh [INPUTS] [SEED]          (PYTHON: the interpreter to use, default .venv/bin/python)
#
# The package is copied to a temporary folder and built there, so that the checkout keeps its ordinary kernel. Python's own
# allocator is turned off: only memory that comes from malloc is watched to the byte.
set -eu

inputs=${1:-100000}
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
python=$(cd "$(dirname "$(command -v "$python")")" && pwd)/$(basename "$python")
compiler=${CC:-gcc}
flags="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
cp -R "$root/src" "$root/setup.py" "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" "$work"
mkdir "$work/tests"
cp -R "$root/tests/fuzz" "$work/tests"
rm -f "$work"/src/fencepost/kernel/_batch*.so "$work"/src/fencepost/kernel/_batch.c

cd "$work"
echo "building the kernel with $flags"
CC=$compiler FENCEPOST_CFLAGS=$flags "$python" setup.py -q build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
ls src/fencepost/kernel/_batch*.so >/dev/null || { cat build.log; exit 1; }

preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
# Leaks are not looked for: an interpreter at exit is full of them.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONMALLOC=malloc PYTHONPATH="$work/src:$work" PYTHONDONTWRITEBYTECODE=1
LD_PRELOAD=$preload "$python" -c '
import sys
from fencepost.kernel import _batch
assert _batch.__file__.startswith(sys.argv[1]), _batch.__file__
assert "libasan" in open("/proc/self/maps").read(), "the sanitizer is not loaded"
' "$work"
LD_PRELOAD=$preload "$python" -m tests.fuzz.fuzzer "$inputs" ${2:+"$2"}
echo "nothing found by AddressSanitizer and UndefinedBehaviorSanitizer"
