"""`ark-jax completion`: scripts that shells run, and what they then complete."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ark_jax import __main__
from ark_jax.cli import completion, verbs


@pytest.fixture
def script(tmp_path, capsys):
    """The script of a shell, in a file."""

    def write(shell: str) -> str:
        assert __main__._main(["completion", shell]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out)
        return str(path)

    return write


# As bash does at a tab: the words so far, of which the last one is completed.
AT_A_TAB = """
source "$1"; shift
spec=$(complete -p ark-jax)
function_name=${spec##*-F }; function_name=${function_name%% *}
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
$function_name 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (["st"], ["status"]),
        (["s"], ["status", "sweep", "search"]),
        (["run", "--ver"], ["--verify"]),
        (["run", "--config"], ["--config=", "--config."]),
        (["run", "--config.train.temp"], ["--config.train.temperature="]),
        (["index", "--bi"], ["--bits="]),
        (["score", "--config.mesh"], ["--config.mesh="]),
    ],
)
def test_bash_completes_verbs_and_flags(typed, completed, script):
    done = subprocess.run(
        ["bash", "--norc", "-c", AT_A_TAB, "bash", script("bash"), "ark-jax", *typed],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(completed) <= set(done.stdout.split()) and done.stderr == ""
    assert all(word.startswith(typed[-1]) for word in done.stdout.split())


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_accepts_its_script(shell, script):
    path = script(shell)
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", path], check=True)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_verbs_and_flags(script):
    path = script("fish")
    ask = lambda typed: (
        subprocess.run(
            ["fish", "--no-config", "-c", f"source {path}; complete -C '{typed}'"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert ask("ark-jax stat").startswith("status\twhich stages are done")
    assert "--config.train.temperature" in ask("ark-jax run --config.train.temp")


def test_every_completion_script_has_every_verb_and_field(script):
    for shell in completion.SHELLS:
        text = Path(script(shell)).read_text()
        assert all(name in text for name in verbs.VERBS)
        assert "config.train.lora_rank" in text and "config.paths.hops" in text


def test_completed_flags_equal_those_of_the_help():
    known = ["--config=", "--device=", "--verify", "--workdir="]
    assert sorted(completion.flags_of("plan")) == known
    assert {"--names=", "--questions="} <= set(completion.flags_of("check"))
    assert "--config" not in completion.flags_of("run")


def test_an_unknown_shell_is_refused_with_the_known_ones(capsys):
    for words in ([], ["tcsh"], ["bash", "zsh"]):
        assert __main__._main(["completion", *words]) == 1
        assert "give one shell: ark-jax completion bash|zsh|fish" in capsys.readouterr().err
