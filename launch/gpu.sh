#!/usr/bin/env bash
# One process drives all GPUs of a machine. On one machine: launch/gpu.sh run --config=ark --workdir=DIR ...
# On several without a scheduler, on each: ARK_COORDINATOR=FIRST_HOST:PORT ARK_PROCESSES=N ARK_PROCESS=I launch/gpu.sh run ...
set -euo pipefail
nvidia-smi -L >&2 || { echo "launch/gpu.sh: no NVIDIA driver here" >&2; exit 1; }
export JAX_PLATFORMS=cuda
# jax takes 75 % of a GPU's memory, and batches are sized by what it takes. CUDA, cuDNN and NCCL need a few GB of the rest.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-.92}"
# While a layer computes, weights are gathered from other GPUs; by default XLA waits for them. A flag that XLA does not know
# ends the process, so tests/test_launch.py tries these.
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS-}"
# NCCL is left alone: it finds NVLink and InfiniBand. A cloud whose network needs a plugin has a script for its variables.
exec "${PYTHON:-python3}" -m ark_jax "$@"
