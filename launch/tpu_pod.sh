#!/usr/bin/env bash
# Brings this tree to every worker of a TPU pod and starts it there; the workdir must lie on a disk that all of them mount:
#   TPU=NAME ZONE=us-east5-a launch/tpu_pod.sh run --config=configs/ark.py --workdir=/mnt/shared/DIR ...
set -euo pipefail
: "${TPU:?name of the pod}" "${ZONE:?its zone}"
cd "$(dirname "$0")/.."
on_all=(gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all)
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output="$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$TPU:ark_jax.tar.gz" --zone="$ZONE" --worker=all
"${on_all[@]}" --command='rm -rf ark_jax && mkdir ark_jax && tar -xzf ark_jax.tar.gz -C ark_jax &&
  python3 -m venv .ark && .ark/bin/pip install --quiet -e ./ark_jax "jax[tpu]"'
printf -v arguments '%q ' "$@"
"${on_all[@]}" --command="cd ark_jax && ARK_COORDINATOR=auto ../.ark/bin/python -m ark_jax $arguments" || {
  status=$?
  echo "the run ended early; what is finished is kept: run the same command again to go on" >&2
  exit "$status"
}
