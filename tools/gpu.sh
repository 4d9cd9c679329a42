#!/usr/bin/env bash
# On a machine with a GPU: builds for a Python that has torch, runs the tests that need a GPU, measures.
#
#   tools/gpu.sh PART...     build, test, sanitize, bench, sparse, soak, whole, pair, starts, arrivals, agent,
#                            peers; in the order given
#
# If a part fails, the others still run, and the failed one is named at the end. If the build fails, nothing else runs.
#
# PYTHON   the Python that holds torch and Triton; python3 unless set
# WHEELS   folder of wheels to install; unset: the package index provides what pyproject.toml pins
# MODELS   folder of GGUF files to measure; each at batch sizes of 1, 4 and 16
# OUT      folder for logs and results; build/gpu unless set
# TEST_WORKERS  processes that run tests; half as many as cores unless set
# START_S  seconds for each start of the whole R1 and what it measures; 900 unless set
# SANITIZE_S  seconds for the sanitized tests; 900 unless set
# SOAK_S   seconds of mixed load; 600 unless set
# EXPERTS  type of the experts of the whole R1: Q2_K (225 GB of memory) unless set, Q4_K takes 378 GB
# PACKED   folder for its packed weights, a tmpfs with room for them; unset: nothing is kept, and nothing started again;
#          pair needs one
# THREADS  numbers of threads to start the whole R1 with; all unless set
#
# For starts:
# FIRSTS   first starts of each model, with nothing compiled or measured; 1 unless set
# LATERS   later starts of each model; 2 unless set
#
# For starts, arrivals, agent and peers, lists are separated by spaces:
# SHAPES   models, each SHAPE[:LAYERS] of tools/synthetic_model.py; "r1:8 qwen3-30b" unless set, with v2-lite for peers,
#          qwen3-coder-next for agent
# BATCHES  sizes of a batch; "16 64" unless set, "1 4 16" for peers
# SERVERS  "ballast llama" unless set; llama is skipped unless LLAMA_SERVER is set
# CASES    cases of benchmarks/serving/arrivals.py; those of each shape and batch size unless set
# ROUNDS   rounds of each case; 3 unless set, also for pair
# MODEL_DIR  folder for the GGUF files, which are written if missing; OUT unless set
# HOLLOW   1: write most of a file as a hole; unset: random bytes, so that what is computed is not zeros; for agent a
#          hole unless empty
#
# For agent:
# CONVERSATIONS  numbers of conversations at once; "1 4" unless set
# TURNS, TOKENS  turns of a conversation, and tokens of its last prompt; 20 and 40000 unless set
# CACHE    tokens that the cache in GPU memory holds; a quarter more than one conversation unless set
# AGAIN    turns whose prompts are processed again; 1, the middle one, unless set
#
# For arrivals and agent:
# SERVE    where ballast serve computes, and more of its options; "--device cuda:0 --vram_limit 24GiB" unless set, for
#          agent with "--kv_host_bytes 24GiB"
# LLAMA_SERVER  path of llama-server
# LLAMA_OPTIONS  more options of llama-server
# LLAMA_VERSION  its version, for the records
# READY_S  seconds until a server must be ready; 500 unless set
#
# For peers:
# LLAMA_BIN  folder of llama-batched-bench; benchmarks/peers/llama_cpp.py --help says where to get it
# PLACES   where experts are: "host gpu" unless set, also for pair
# PREFILL  tokens of prompts; "512 4096 32768" unless set, none if empty, as BATCHES may be
# STEPS    tokens of each reply; 200 unless set, 24 for pair
# DEVICE   where Ballast computes; cuda:0 unless set
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
site=$PWD/build/gpu-site
mkdir -p "$out" "$site"
export PYTHONPATH="$PWD/runtime:$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$PATH" PYTHONUNBUFFERED=1

# Everything but torch: the server's packages, then what builds and tests need.
packages() {
  "$python" - <<'PYTHON'
import re
import tomllib

with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
tools = ("cmake", "ninja", "pybind11", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
for requirement in settings["project"]["dependencies"]:
    print(requirement)
for requirement in settings["dependency-groups"]["dev"]:
    if re.match(r"[\w.-]+", requirement)[0] in tools:
        print(requirement)
PYTHON
}

install() {
  if [ -n "${WHEELS:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$site" "$WHEELS"/*.whl
  else
    packages > "$out/packages.txt"
    "$python" -m pip install --quiet --no-compile --upgrade --target "$site" -r "$out/packages.txt"
  fi
}

build() {
  install
  # An untested compiler may emit warnings that ours does not.
  cmake -S csrc -B build/gpu-core -G Ninja -DCMAKE_BUILD_TYPE=Release -DBALLAST_WERROR=OFF \
    -DPYTHON_EXECUTABLE="$(command -v "$python")" -DPython3_EXECUTABLE="$(command -v "$python")" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" -Wno-dev \
    > "$out/build.log" 2>&1 || { tail -20 "$out/build.log"; exit 1; }
  ninja -C build/gpu-core >> "$out/build.log" || { tail -40 "$out/build.log"; exit 1; }
  cp build/gpu-core/_core*.so runtime/ballast/
  "$python" -c 'import torch, triton; from ballast._core import kernels; from ballast.host.gpu import why_unusable
print("torch", torch.__version__, "triton", triton.__version__, kernels.usable_isas(), why_unusable("cuda:0") or torch.cuda.get_device_name())'
}

test() {
  # Servers first and one at a time: at its first start, a server compiles kernels on all cores, and tests limit its time.
  local servers files failed=0
  mapfile -t servers < <(grep -rl --include='test_*.py' 'mark\.gpu' tests/runtime | xargs grep -l ServerProcess | sort)
  mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.gpu' tests/kernels tests/runtime | sort |
    grep -vxF "$(printf '%s\n' "${servers[@]}")")
  tests_of servers 1 "${servers[@]}" || failed=1
  tests_of tests "${TEST_WORKERS:-$(($(nproc) / 2 + 1))}" "${files[@]}" || failed=1
  return $failed
}

# Files without such tests may import packages that are not installed here. Most of the time goes into compiling
# kernels, so the workers share one cache of them. pytest-benchmark, if installed, refuses to run beside workers.
# Failures are also written one by one: a run may be cut off.
tests_of() {
  local name=$1 workers=$2
  TEST_FAILURES="$out/failures.txt" "$python" -m pytest -q -m "gpu or gpu2" -p no:cacheprovider -p no:benchmark "${@:3}" \
    --junitxml="$out/$name.xml" --numprocesses "$workers" --dist worksteal | tee "$out/$name.log"
}

# Checks the kernels for memory errors in the first, the middle and the last case of every test, because each launch
# takes a hundred times as long. Tests that capture graphs are left out, because they need the allocator's cache.
sanitize() {
  local sanitizer cases="$out/memcheck-cases.txt"
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2> /dev/null | tail -1)
  [ -n "$sanitizer" ] || { echo "compute-sanitizer is not here; it comes with the CUDA toolkit"; exit 1; }
  "$python" -m pytest -q --collect-only -m gpu -k "not graph and not captur" -p no:cacheprovider tests/kernels |
    awk -F'[' '/::/ { n[$1]++; all[$1, n[$1]] = $0 } END { for (test in n) {
      print all[test, 1]; middle = int((n[test] + 1) / 2)
      if (middle > 1) print all[test, middle]
      if (n[test] > middle) print all[test, n[test]] } }' | sort > "$cases"
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout "${SANITIZE_S:-900}" "$sanitizer" --tool memcheck --error-exitcode 99 \
    --target-processes application-only --log-file "$out/memcheck.log" \
    "$python" -m pytest -q -m gpu -p no:cacheprovider "@$cases" | tee "$out/memcheck-tests.log"
  tail -3 "$out/memcheck.log"
}

bench() {
  nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
  "$python" benchmarks/hybrid/handoff.py | tee "$out/handoff.jsonl"
  for model in ${MODELS:+"$MODELS"/*.gguf}; do
    "$python" benchmarks/engine/decode.py "$model" --device cuda:0 --batch 1 4 16 --prefill 512 4096 --steps 48 |
      tee -a "$out/decode.jsonl"
    "$python" benchmarks/hybrid/vram.py "$model" --vram_limit 24GiB | tee -a "$out/vram.jsonl"
    "$python" benchmarks/hybrid/timeline.py "$model" | tee -a "$out/timeline.txt"
  done
}

# Attention to chosen positions: a layer of DeepSeek V3.2's shape compared with dense attention, and the engine with the
# model reduced to 8 layers, mostly holes, with contexts below and above the number of chosen positions.
sparse() {
  local model="$out/v3.2-8.gguf"
  "$python" benchmarks/hybrid/sparse_attention.py | tee "$out/sparse_attention.jsonl"
  [ -f "$model" ] || "$python" tools/synthetic_model.py "$model" --shape v3.2 --layers 8 --hollow
  "$python" benchmarks/engine/decode.py "$model" --device cuda:0 --batch 1 4 16 --prefill 4096 --steps 48 |
    tee -a "$out/decode.jsonl"
  "$python" benchmarks/engine/decode.py "$model" --device cuda:0 --batch 1 4 --prefill --prompt 8192 --steps 48 |
    tee -a "$out/decode-8192.jsonl"
}

# Mixed load with cancelled requests on a real server. At the end, nothing may be held and memory must not have grown.
soak() {
  "$python" benchmarks/hybrid/soak.py --device cuda:0 --seconds "${SOAK_S:-600}" | tee "$out/soak.jsonl"
}

# A whole DeepSeek-R1's shape, with holes for weights: first start, second start, decode with and without a share across
# PCIe, and prefill, within 24 GiB of GPU memory; then once with all GPU memory for experts. Each start is a process of
# its own with a time limit, so that one that hangs does not stop the others.
whole() {
  local model="$out/whole-r1.gguf" experts=${EXPERTS:-Q2_K} threads failed=0
  [ -f "$model" ] || "$python" tools/synthetic_model.py "$model" --shape r1 --experts "$experts" --hollow
  for threads in ${THREADS:-$(nproc)}; do
    start "$threads" "$experts, $threads threads" --vram_limit 24GiB || failed=1
    [ -z "${PACKED:-}" ] || start "$threads" "$experts, $threads threads, second start" --vram_limit 24GiB || failed=1
  done
  start "$threads" "$experts, $threads threads, all of the GPU" || failed=1
  return $failed
}

start() {
  local threads=$1 name=$2
  shift 2
  timeout -k 10 "${START_S:-900}" "$python" benchmarks/engine/whole_model.py "$out/whole-r1.gguf" --case "$name" \
    --device cuda:0 --cpu_threads "$threads" --numa auto --max_batch_size 16 --cache_lens 34816 --prompt 16 --steps 16 \
    --batch 1 4 8 16 --prefill 4096 32768 ${PACKED:+--packed_dir "$PACKED"} "$@" 2>> "$out/whole.log" |
    tee -a "$out/whole.jsonl" || { echo "$name: ended with $?, see $out/whole.log"; return 1; }
}

# The whole R1 on two GPUs and on one of them, alternately: with most experts in host memory, which takes 24 GiB of each
# GPU, and with all memory of the GPUs. The first start packs the weights for the others: with --gpu_experts 255, no GPU
# holds a whole layer, so that all need the same ones. Only the first round has prompts.
pair() {
  local model="$out/whole-r1.gguf" place failed=0 packed round prompts own each
  local -a one two
  [ -f "$model" ] || "$python" tools/synthetic_model.py "$model" --shape r1 --experts "${EXPERTS:-Q2_K}" --hollow
  "$python" -c 'import torch; print("the GPUs reach each other:", torch.cuda.can_device_access_peer(0, 1))'
  for place in ${PLACES:-host gpu}; do
    one=(--device cuda:0) two=(--device cuda:0,cuda:1) packed='' own='' each=''
    if [ "$place" = host ]; then
      packed=${PACKED:?names a tmpfs for the packed weights}/pair own=", 24 GiB" each=", 24 GiB each"
      mkdir -p "$packed"
      one+=(--vram_limit 24GiB --packed_dir "$packed")
      two+=(--vram_limit 24GiB --packed_dir "$packed" --gpu_experts 255)
    fi
    prompts="4096 32768"
    for round in $(seq "${ROUNDS:-3}"); do
      once "two GPUs$each" "$prompts" "${two[@]}" || failed=1
      once "one GPU$own" "$prompts" "${one[@]}" || failed=1
      prompts=
    done
    [ -z "$packed" ] || rm -rf "$packed"
  done
  return $failed
}

once() {
  local name=$1 prompts=$2
  shift 2
  # shellcheck disable=SC2086  # a list of words
  timeout -k 10 "${START_S:-900}" "$python" benchmarks/engine/whole_model.py "$out/whole-r1.gguf" --case "$name" --once \
    --only greedy --batch 1 4 16 --prefill $prompts --prompt 16 --steps "${STEPS:-24}" --numa auto --max_batch_size 16 \
    --cache_lens 34816 --kv_host_bytes 0 "$@" 2>> "$out/pair.log" | tee -a "$out/pair.jsonl" ||
    { echo "$name: ended with $?, see $out/pair.log"; return 1; }
}

# First and later starts of a server. READY_S limits each.
starts() {
  local shape model failed=0
  for shape in ${SHAPES:-r1:8 qwen3-30b}; do
    model=$(model_of "$shape")
    # shellcheck disable=SC2086  # options are words
    "$python" benchmarks/serving/starts.py "$model" --name "$shape" --limit_s "${READY_S:-500}" \
      --firsts "${FIRSTS:-1}" --laters "${LATERS:-2}" \
      --gpu "$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -1)" \
      --max_batch_size 16 --max_new_tokens 256 --cache_lens 36864 ${SERVE:---device cuda:0 --vram_limit 24GiB} \
      2> "$out/starts-${shape/:/-}.log" | tee -a "$out/starts.jsonl" ||
      { failed=1; tail -20 "$out/starts-${shape/:/-}.log"; }
  done
  return $failed
}

# The file of a shape, which is written if it is missing.
model_of() {
  local shape=$1 model=${MODEL_DIR:-$out}/${1/:/-}.gguf
  if [ ! -f "$model" ]; then
    "$python" tools/synthetic_model.py "$model.part" --shape "${shape%%:*}" \
      $([ "$shape" = "${shape#*:}" ] || echo --layers "${shape#*:}") ${HOLLOW:+--hollow} --vocabulary >&2
    mv "$model.part" "$model"
  fi
  echo "$model"
}

# Many users over HTTP: all together, and arriving at random times. One server per model, batch size and kind of server.
arrivals() {
  local shape batch server model failed=0
  for shape in ${SHAPES:-r1:8 qwen3-30b}; do
    model=$(model_of "$shape")
    for batch in ${BATCHES:-16 64}; do
      for server in ${SERVERS:-ballast llama}; do
        [ "$server" != llama ] || [ -n "${LLAMA_SERVER:-}" ] || continue
        # In a shell of its own, whose end stops the server.
        (arrivals_at "$server" "$shape" "$model" "$batch") || { failed=1; echo "$shape, batch $batch, $server: FAILED"; }
      done
    done
  done
  return $failed
}

# Each request must fit into its share of the cache: the longest prompt has 2000 tokens, the longest reply 200.
arrivals_at() {
  local server=$1 shape=$2 model=$3 batch=$4 cache=$((2304 * $4))
  local -a cases facts options
  read -ra cases <<< "${CASES:-$(default_cases "$shape" "$batch")}"
  [ ${#cases[@]} -gt 0 ] || return 0
  if [ "$server" = ballast ]; then
    options=(--max_batch_size "$batch" --max_new_tokens 256 --cache_lens $cache)
  else
    # The prompt cache would only cost it time.
    options=(-np "$batch" -c $cache --cache-ram 0 -ctxcp 0)
  fi
  serve "$server" "$shape, batch $batch" "$model" "$out/arrivals-$server-${shape/:/-}-$batch.log" "${options[@]}" ||
    return 1
  "$python" benchmarks/serving/arrivals.py "${cases[@]}" --server "$server" --rounds "${ROUNDS:-3}" "${facts[@]}" |
    tee -a "$out/arrivals.jsonl"
}

# Agents' conversations on models with recurrent state, with a cache in GPU memory and a tier in host memory for all.
# For llama-server, LLAMA_OPTIONS may add to its own means of continuing a conversation.
agent() {
  local shape server model failed=0 HOLLOW=${HOLLOW-1}
  local SERVE=${SERVE:---device cuda:0 --vram_limit 24GiB --kv_host_bytes 24GiB}
  for shape in ${SHAPES:-qwen3-coder-next}; do
    model=$(model_of "$shape")
    for server in ${SERVERS:-ballast llama}; do
      [ "$server" != llama ] || [ -n "${LLAMA_SERVER:-}" ] || continue
      (agent_at "$server" "$shape" "$model") || { failed=1; echo "$shape, $server: FAILED"; }
    done
  done
  return $failed
}

agent_at() {
  local server=$1 shape=$2 model=$3 name=$2 tokens=${TOKENS:-40000}
  local -a facts options
  if [ "$server" = ballast ]; then
    name+=${CACHE:+, cache of $CACHE}
    options=(--max_batch_size 8 --max_new_tokens 256 --cache_lens "${CACHE:-$((tokens * 5 / 4))}")
  else
    # A place for each conversation and for the request that decodes meanwhile.
    options=(-np 5 -c $((tokens * 5 * 5 / 4)))
  fi
  serve "$server" "$name" "$model" "$out/agent-$server-${shape/:/-}.log" "${options[@]}" || return 1
  # shellcheck disable=SC2086  # lists are words
  "$python" benchmarks/serving/agents.py --conversations ${CONVERSATIONS:-1 4} --turns "${TURNS:-20}" \
    --tokens "$tokens" --reply 32 --again "${AGAIN:-1}" --server "$server" "${facts[@]}" | tee -a "$out/agents.jsonl"
}

# serve SERVER NAME MODEL LOG OPTION...: starts it, waits until it is ready, and stops it when this shell ends. `facts`,
# an array of the caller, are then the benchmark's options that say what it measures.
serve() {
  local server=$1 name=$2 model=$3 log=$4 port=18080
  local -a command version=()
  shift 4
  if [ "$server" = ballast ]; then
    command=("$python" -m ballast serve --gguf_path "$model" --port $port "$@"
      ${SERVE:---device cuda:0 --vram_limit 24GiB})
  else
    # Without mmap, because its host buffers would not be pinned.
    command=("$LLAMA_SERVER" -m "$model" --host 127.0.0.1 --port $port -ngl 99 -ncmoe 99 --load-mode none -fit off
      -fa auto -b 4096 -ub 4096 -t "$(nproc)" -cb "$@" ${LLAMA_OPTIONS:-})
    version=(--version "${LLAMA_VERSION:-unknown}")
  fi
  # shellcheck disable=SC2068  # options are words
  ${command[@]} > "$log" 2>&1 &
  local pid=$! begin=$SECONDS
  # shellcheck disable=SC2064  # this process, now
  trap "kill $pid 2> /dev/null; wait $pid 2> /dev/null" EXIT
  until is_ready $port "$([ "$server" = ballast ] && echo /readyz || echo /health)"; do
    kill -0 $pid 2> /dev/null || { echo "$server ended before it was ready"; tail -20 "$log"; return 1; }
    [ $((SECONDS - begin)) -lt "${READY_S:-500}" ] || { echo "$server is not ready yet"; tail -20 "$log"; return 1; }
    sleep 1
  done
  echo "$server, $name: ready after $((SECONDS - begin)) s"
  # For the record, without this machine's folders.
  local shown=${command[*]}
  shown=${shown//"$model"/$(basename "$model")}
  [ "$server" = ballast ] && shown=${shown#"$python -m "} || shown=llama-server${shown#"$LLAMA_SERVER"}
  facts=(--port $port --name "$name" --model "$(basename "$model")${HOLLOW:+, hollow}" --command "$shown"
    --gpu "$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -1 || true)"
    ${version[@]+"${version[@]}"})
}

default_cases() {
  case $1 in
    r1*)
      # Only arrivals benefit from a larger batch.
      [ "$2" -gt 16 ] || printf 'together:%s ' 1:64:1 4:64:1 8:64:1 16:64:64 16:200:1 8:1000:1 1:256:1
      printf 'poisson:%s:30 ' 1 2
      ;;
    *)
      [ "$2" -gt 16 ] || printf 'together:%s ' 4:64:1 16:64:1 16:200:1
      printf 'poisson:%s:30 ' 2 6
      ;;
  esac
}

is_ready() {
  "$python" -S -c 'import sys, urllib.request as request
request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{sys.argv[2]}", timeout=5)' "$1" "$2" 2> /dev/null
}

# Runs the engine and llama.cpp alternately on one file: experts in host memory, or all in GPU memory, which holds one
# engine's at a time. Each figure is in peers-rows.jsonl as soon as it is measured; `llama_cpp.py --merge` makes records
# of them if this is stopped early.
peers() {
  local shape place model failed=0
  local -a options
  for shape in ${SHAPES:-r1:8 qwen3-30b v2-lite}; do
    model=$(model_of "$shape")
    for place in ${PLACES:-host gpu}; do
      options=(--case "experts in $place memory" --device "${DEVICE:-cuda:0}")
      case $place in
        host) options+=(--gpu_experts 0) ;;
        gpu) options+=(--peer_options "-ngl 99 --load-mode none -fit off -fa auto -b 4096 -ub 4096") ;;
        *) echo "PLACES: $place is neither host nor gpu" >&2; return 2 ;;
      esac
      # shellcheck disable=SC2086  # lists are words
      "$python" benchmarks/peers/llama_cpp.py "$model" "$LLAMA_BIN" "${options[@]}" --rounds "${ROUNDS:-3}" \
        --prefill ${PREFILL-512 4096 32768} --batch ${BATCHES-1 4 16} --steps "${STEPS:-200}" --threads "$(nproc)" \
        --rows "$out/peers-rows.jsonl" | tee -a "$out/peers.jsonl" || { failed=1; echo "$shape, $place: FAILED"; }
    done
  done
  return $failed
}

[ $# -gt 0 ] || { sed -n '/^#   tools/,/^set /{/^set /!p}' "$0"; exit 2; }
for part in "$@"; do
  case $part in
    build | test | sanitize | bench | sparse | soak | whole | pair | starts | arrivals | agent | peers) ;;
    *) echo "gpu.sh: $part is none of build, test, sanitize, bench, sparse, soak, whole, pair, starts, arrivals, agent, peers" >&2; exit 2 ;;
  esac
done
failed=
for part in "$@"; do
  begin=$SECONDS
  # Not in an `if`: there, bash continues after a command that fails.
  set +e
  (set -e; "$part")
  status=$?
  set -e
  echo "gpu.sh: $part ended with $status after $((SECONDS - begin)) s, logs are in $out"
  [ "$status" -eq 0 ] || failed="$failed $part"
  [ "$part" != build ] || [ "$status" -eq 0 ] || break
done
[ -z "$failed" ] || { echo "gpu.sh: FAILED:$failed" >&2; exit 1; }
