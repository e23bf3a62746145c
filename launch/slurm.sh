#!/usr/bin/env bash
# A process on each GPU of a Slurm allocation; the workdir must lie where all nodes see it or in a bucket:
#   sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 launch/slurm.sh run --config=ark --workdir=DIR ...
#SBATCH --job-name=ark
#SBATCH --requeue
set -euo pipefail
: "${SLURM_JOB_ID:?run it with sbatch}"
export ARK_COORDINATOR=auto # addresses and numbers of the processes are Slurm's
# As in gpu.sh, which says why.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-.92}"
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS-}"
srun --kill-on-bad-exit=1 "${PYTHON:-python3}" -m ark_jax "$@" || {
  status=$?
  echo "the run ended early; what is finished is kept: submit the same command again to go on" >&2
  exit "$status"
}
