#!/usr/bin/env bash
# A run on a spot slice of TPUs. Asks for the slice (a queued resource), starts the run there by tpu_pod.sh, and when the slice
# is taken back, asks again and resumes, until the run has ended. Then it gives the slice back:
#   TPU=NAME ZONE=us-east5-a ACCELERATOR=v5litepod-16 launch/tpu_spot.sh run --config=ark --workdir=gs://BUCKET/DIR ...
# RUNTIME: the image of the workers. WAIT: seconds between two looks at the slice. Other variables: as of tpu_pod.sh. End this
# script before you stop the run, or it starts it again.
set -euo pipefail
: "${TPU:?name of the slice}" "${ZONE:?its zone}" "${ACCELERATOR:?its type}" "${1:?a verb of ark-jax}"
here=$(dirname "$0") wait=${WAIT:-60} command=("$@") before=''
queue() { gcloud compute tpus queued-resources "$1" "${@:2}" --zone="$ZONE"; }
ask_worker() {
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=0 --command='ark_jax/launch/worker.sh status' 2>/dev/null
}
give_back() { queue delete "$TPU" --force --quiet; }
while :; do
  now=$(queue list --filter="name~/$TPU\$" --format='value(state.state)') || now='out of reach'
  [[ $now == "$before" ]] || echo "$TPU: ${now:-there is none: asked for}" >&2
  before=$now
  if [[ $now != ACTIVE ]]; then command=("$@"); fi # a new slice has empty disks
  case $now in
    '') queue create "$TPU" --node-id="$TPU" --accelerator-type="$ACCELERATOR" \
      --runtime-version="${RUNTIME:-v2-alpha-tpuv5-lite}" --spot ;;
    SUSPENDED | FAILED) give_back ;; # taken back, or never made
    ACTIVE)
      if "$here/tpu_pod.sh" "${command[@]}"; then give_back; exit; fi
      case $(ask_worker || echo unknown) in
        running) command=(watch) ;; # ssh ended, not the run
        143 | unknown) command=("$@") ;; # the slice is being taken back
        *) give_back; exit 1 ;; # an error of the run, or before it began; it is shown above
      esac ;;
  esac
  sleep "$wait"
done
