#!/usr/bin/env bash
# Sends this tree, as it lies here, to every worker of a TPU pod and starts it there; it goes on without this shell:
#   TPU=NAME ZONE=us-east5-a launch/tpu_pod.sh run --config=ark --workdir=gs://BUCKET/DIR ...
#   TPU=NAME ZONE=us-east5-a launch/tpu_pod.sh watch    # shows the log again; `stop` ends the run, which may be resumed
# DRY_RUN=1 prints the commands. EXTRAS: what is installed beside the package. KEYS: variables that the workers get, if set.
set -euo pipefail
: "${TPU:?name of the pod}" "${ZONE:?its zone}" "${1:?a verb of ark-jax, watch or stop}"
cd "$(dirname "$0")/.."
call() {
  local command=(gcloud compute tpus tpu-vm "$@")
  if [[ ${DRY_RUN-} ]]; then printf '%q ' "${command[@]}"; echo; else "${command[@]}"; fi
}
on() { call ssh "$TPU" --zone="$ZONE" --worker="$1" --command="$2"; }
watch() {
  on 0 'ark_jax/launch/worker.sh watch' || {
    status=$?
    echo "the run ended early, or only the watching did (go on with: tpu_pod.sh watch); what is finished is kept:" \
      "run the same command again to go on" >&2
    exit "$status"
  }
}
case $1 in
  watch) watch; exit ;;
  stop) on all 'ark_jax/launch/worker.sh stop'; exit ;;
esac
sent=$(mktemp -d)
trap 'rm -rf "$sent"' EXIT
git ls-files -z --cached --others --exclude-standard --deduplicate |
  while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done >"$sent/files"
tar --null --files-from="$sent/files" -czf "$sent/ark_jax.tar.gz"
echo "sent: $(tr -cd '\0' <"$sent/files" | wc -c) files of this tree, also what is not committed; not what git ignores" >&2
for word in "$@"; do
  value=${word#*=} value=${value%%:*}
  if [[ $word == --config*=* && -e $value ]] && ! grep -qz "^${value%/}\(/\|$\)" "$sent/files"; then
    echo "not sent: $value; it must lie at the same path on every worker, or in a bucket (gs://...)" >&2
  fi
done
umask 077
for name in ${KEYS-OPENAI_API_KEY HF_TOKEN WANDB_API_KEY}; do
  if [[ ${!name-} ]]; then
    printf '%s=%q\n' "$name" "${!name}" >>"$sent/ark.keys"
    echo "sent: \$$name" >&2
  fi
done
touch "$sent/ark.keys"
call scp "$sent/ark_jax.tar.gz" "$sent/ark.keys" "$TPU:" --zone="$ZONE" --worker=all
printf -v arguments '%q ' "$@"
on all "if kill -0 \$(cat ark.pid 2>/dev/null) 2>/dev/null; then echo 'a run is under way: watch or stop it' >&2; exit 1; fi
  rm -rf ark_jax && mkdir ark_jax && tar -xzf ark_jax.tar.gz -C ark_jax &&
  ark_jax/launch/worker.sh install '${EXTRAS-demo,files,gcs,graphs,llm}'"
on all "ark_jax/launch/worker.sh start $arguments"
watch
