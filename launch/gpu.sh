#!/usr/bin/env bash
# One process drives all GPUs of a machine. On one machine: launch/gpu.sh run --config=ark --workdir=DIR ...
# On several without a scheduler, on each: ARK_COORDINATOR=FIRST_HOST:PORT ARK_PROCESSES=N ARK_PROCESS=I launch/gpu.sh run ...
set -euo pipefail
nvidia-smi -L >&2 || { echo "launch/gpu.sh: no NVIDIA driver here" >&2; exit 1; }
export JAX_PLATFORMS=cuda
exec "${PYTHON:-python3}" -m ark_jax "$@"
