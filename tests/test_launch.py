"""launch/: the shell scripts, on stand-ins for the machines that they start."""

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support.paths import REPOSITORY

LAUNCH = REPOSITORY / "launch"
SCRIPTS = ("local.sh", "gpu.sh", "slurm.sh", "tpu_pod.sh", "tpu_spot.sh", "worker.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_launch_scripts_pass_shellcheck_and_set_no_config_field(script):
    path = LAUNCH / script
    text = path.read_text()
    assert os.access(path, os.X_OK) and len(text.splitlines()) < 60
    assert "set -euo pipefail" in text and not re.search(r"--config\.\w", text)
    subprocess.run(["bash", "-n", path], check=True)
    environment_folder = str(Path(sys.executable).parent)
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=environment_folder)
    if not shellcheck:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# Two folders stand in for the homes of two workers: what is sent there is copied, and commands run
# there by a real shell. The file `state` beside them is that of a queued resource, which is granted
# when somebody has looked at it.
GCLOUD = """#!/usr/bin/env bash
set -euo pipefail
state=$PODS/state
if [[ "$1 $2 $3" == "compute tpus queued-resources" ]]; then
  mkdir -p "$PODS"
  echo "$4" >>"$PODS/asked"
  case $4 in
    list)
      if [[ -e $state ]]; then cat "$state"; sed -i s/WAITING_FOR_RESOURCES/ACTIVE/ "$state"; fi ;;
    create) [[ ! -e $state ]]; echo "$*" >>"$PODS/created"; echo WAITING_FOR_RESOURCES >"$state" ;;
    delete) rm -r "$state" "$PODS"/[01] ;;
  esac
  exit
fi
[[ "$1 $2 $3" == "compute tpus tpu-vm" ]]
if [[ -e $state ]] && ! grep -q ACTIVE "$state"; then echo "no route to host" >&2; exit 255; fi
for flag in "$@"; do case $flag in
  --worker=all) workers=(0 1) ;;
  --worker=*) workers=("${flag#--worker=}") ;;
  --command=*) command=${flag#--command=} ;;
esac; done
for worker in "${workers[@]}"; do
  home=$PODS/$worker
  mkdir -p "$home"
  case $4 in
    scp) cp "${@:5:2}" "$home" ;;
    ssh) (cd "$home" && HOME=$home bash -c "$command") ;;
  esac
done
"""
# The image's python3, by which uv fetches another one that is new enough: here it becomes ours.
PYTHON = """#!/usr/bin/env bash
echo "$@" >>"$HOME/installed"
if [[ "$2 $3" == "uv venv" ]]; then
  mkdir -p .ark/bin
  printf '#!/bin/sh\nexec {python} "$@"\n' >.ark/bin/python
  chmod +x .ark/bin/python
fi
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def pod(tmp_path):
    """A checkout with a config that is not committed, and commands that reach two workers."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    tree = tmp_path / "tree"
    for name in ("ark_jax", "launch"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tree / name, ignore=ignored)
    (tree / ".gitignore").write_text("secret_data/\n")
    git = ["git", "-C", tree, "-c", "user.name=A", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *words], check=True)
    (tree / "mine.py").write_text("from ark_jax import config\nget_config = config.ark\n")
    (tree / "secret_data").mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    executable(tools / "gcloud", GCLOUD)
    executable(tools / "python3", PYTHON.format(python=sys.executable))
    return tree


def launch(
    tree: Path, *words: str, script: str = "tpu_pod.sh", **variables: str
) -> subprocess.CompletedProcess:
    keys = ("OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if name not in keys}
    path = f"{tree.parent / 'tools'}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "PODS": str(tree.parent / "pods"), "TPU": "slice", "ZONE": "a"}
    return subprocess.run(
        [tree / "launch" / script, *words],
        env=inherited | settings | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_dry_run_prints_commands_without_sending_anything(pod):
    key = "sk-very-secret"
    words = ("run", "--config=mine.py", "--workdir=/mnt/a b")
    done = launch(pod, *words, DRY_RUN="1", OPENAI_API_KEY=key, EXTRAS="llm")
    assert done.returncode == 0, done.stderr
    ssh = "gcloud compute tpus tpu-vm ssh slice --zone=a --worker="
    starts = [line[: len(ssh) + 3] for line in done.stdout.splitlines() if line.startswith(ssh)]
    assert starts == [f"{ssh}all", f"{ssh}all", f"{ssh}0 -"]
    assert "ark.keys slice: --zone=a --worker=all" in done.stdout
    assert "install" in done.stdout and "llm" in done.stdout
    assert key not in done.stdout + done.stderr and "sent: $OPENAI_API_KEY" in done.stderr
    assert not (pod.parent / "pods").exists()


def test_a_pod_receives_the_working_tree_and_runs_the_command(pod):
    words = ("config", "train.batch", "--config=mine.py", "--config.data.path=secret_data")
    done = launch(pod, *words, OPENAI_API_KEY="it's secret")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  train.batch = 16" in done.stdout
    assert "not sent: secret_data; it must lie at the same path on every worker" in done.stderr
    for worker in ("0", "1"):
        home = pod.parent / "pods" / worker
        assert (home / "ark.log").read_text().count("train.batch = 16") == 1
        assert (home / "ark_jax" / "mine.py").is_file()
        assert not (home / "ark_jax" / "secret_data").exists() and not (home / "ark.keys").exists()
        installed = (home / "installed").read_text()
        assert "--python 3.12 .ark" in installed
        assert "./ark_jax[tpu,demo,files,gcs,graphs,llm]" in installed
    again = launch(pod, "watch")
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_a_failed_run_on_a_pod_is_reported_and_stop_ends_a_run(pod):
    done = launch(pod, "config", "no_such_field")
    assert done.returncode == 1 and "no field begins with no_such_field" in done.stdout
    assert "what is finished is kept: run the same command again" in done.stderr
    home = pod.parent / "pods" / "0"
    (home / "ark_jax" / "slow.py").write_text("import time\nopen('begun', 'w')\ntime.sleep(90)\n")
    (home / "ark.keys").touch()
    worker = lambda *words: subprocess.run(
        [home / "ark_jax" / "launch" / "worker.sh", *words],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    worker("start", "status", "--config=slow.py", "--workdir=x")
    until = time.monotonic() + 60
    while not (home / "ark_jax" / "begun").exists():
        assert time.monotonic() < until, (home / "ark.log").read_text()
        time.sleep(0.05)
    assert worker("status").stdout == "running\n"
    worker("stop")
    assert worker("watch").returncode == 143  # the run may be resumed
    assert worker("status").stdout == "143\n"
    assert "stopped: run the same command again" in (home / "ark.log").read_text()


TAKEN_BACK = """
import os
from pathlib import Path
from ark_jax import config
pods = Path(os.environ["PODS"])
with (pods / "begun").open("a") as file:
    print(os.environ["HOME"], file=file)
if len((pods / "begun").read_text().split()) <= 2:  # one of the first slice's workers
    (pods / "state").write_text("SUSPENDED")
    os.kill(os.getpid(), 9)
get_config = config.ark
"""
SPOT = {"script": "tpu_spot.sh", "ACCELERATOR": "v5litepod-8", "WAIT": "0.2"}


def test_a_spot_slice_that_is_taken_back_is_asked_for_again(pod):
    (pod / "mine.py").write_text(TAKEN_BACK)
    done = launch(pod, "config", "train.batch", "--config=mine.py", **SPOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  train.batch = 16") == 1
    pods = pod.parent / "pods"
    created = (pods / "created").read_text().splitlines()
    assert len(created) == 2
    for words in ("create slice --node-id=slice --accelerator-type=v5litepod-8", "--spot --zone=a"):
        assert all(words in line for line in created)
    assert (pods / "asked").read_text().split().count("delete") == 2
    assert not (pods / "state").exists(), "the slice is given back"


def test_a_run_that_fails_on_a_spot_slice_is_not_repeated(pod):
    done = launch(pod, "config", "no_such_field", **SPOT)
    assert done.returncode == 1 and done.stdout.count("no field begins with no_such_field") == 1
    assert (pod.parent / "pods" / "asked").read_text().split()[-1] == "delete"


@pytest.mark.parametrize("script", ["gpu.sh", "slurm.sh"])
def test_the_installed_xla_knows_the_flags_for_gpus(script):
    flags = re.findall(r"--xla_\w+=\w+", (LAUNCH / script).read_text())
    start = lambda *flags: subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        timeout=60,
    )
    assert flags and start(*flags).returncode == 0
    assert start(*flags, "--xla_no_such_flag=true").returncode != 0


@pytest.mark.parametrize("name", ["skypilot.yaml", "gke.yaml"])
def test_cluster_files_are_valid_yaml_marked_as_never_run(name):
    text = (LAUNCH / name).read_text()
    parts = list(yaml.safe_load_all(text))
    assert "Never run." in text and parts
    for script in (part.get(key, "") for part in parts for key in ("setup", "run")):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_dockerfile_copies_the_files_needed_to_build():
    text = (LAUNCH / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)
    names = set(" ".join(copied).split())
    assert {"setup.py", "README.md", "ark_jax"} <= names
    assert [name for name in names if not (REPOSITORY / name).exists()] == []
    assert "Never built" in text
