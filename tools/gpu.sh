#!/usr/bin/env bash
# On a machine with a GPU: builds beside a Python that holds torch, runs the tests that need a GPU, measures.
#
#   tools/gpu.sh PART...     build, test, sanitize, bench; in that order
#
# PYTHON   the Python that holds torch and Triton; python3 unless set
# WHEELS   folder of wheels to install beside it, where there is no package index
# MODELS   folder of GGUF files to measure; each at batch sizes of 1, 4 and 16
# OUT      folder for logs and results; build/gpu unless set
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
site=$PWD/build/gpu-site
mkdir -p "$out" "$site"
export PYTHONPATH="$PWD/runtime:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

build() {
  if [ -n "${WHEELS:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$site" "$WHEELS"/*.whl
  fi
  cmake -S csrc -B build/gpu-core -G Ninja -DCMAKE_BUILD_TYPE=Release -DPYTHON_EXECUTABLE="$(command -v "$python")" \
    -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" -Wno-dev > "$out/build.log" 2>&1 || { tail -20 "$out/build.log"; exit 1; }
  ninja -C build/gpu-core >> "$out/build.log" || { tail -40 "$out/build.log"; exit 1; }
  cp build/gpu-core/_core*.so runtime/ballast/
  "$python" -c 'import torch, triton; from ballast._core import kernels; from ballast.gpu import why_unusable
print("torch", torch.__version__, "triton", triton.__version__, kernels.usable_isas(), why_unusable("cuda:0") or torch.cuda.get_device_name())'
}

test() {
  "$python" -m pytest -q -m gpu -p no:cacheprovider tests/kernels tests/runtime/test_hybrid_model.py \
    --junitxml="$out/tests.xml" | tee "$out/tests.log"
}

sanitize() {
  compute-sanitizer --tool memcheck --error-exitcode 1 --log-file "$out/memcheck.log" \
    "$python" -m pytest -q -m gpu -p no:cacheprovider tests/kernels/test_panel_linear.py -k "17-1 or head"
  tail -3 "$out/memcheck.log"
}

bench() {
  nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
  "$python" benchmarks/hybrid/handoff.py | tee "$out/handoff.jsonl"
  for model in ${MODELS:+"$MODELS"/*.gguf}; do
    "$python" benchmarks/engine/decode.py "$model" --device cuda:0 --batch 1 4 16 --prefill 512 4096 --steps 48 |
      tee -a "$out/decode.jsonl"
  done
}

[ $# -gt 0 ] || { sed -n '2,10p' "$0"; exit 2; }
for part in "$@"; do
  case $part in
    build | test | sanitize | bench) "$part" ;;
    *) echo "gpu.sh: $part is none of build, test, sanitize, bench" >&2; exit 2 ;;
  esac
done
