"""The notebooks, each run from its first cell to its last in a kernel of its own.

`python tests/test_notebooks.py` runs them too, and stores what they show.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.paths import REPOSITORY

FOLDER = REPOSITORY / "notebooks"
NAMES = (
    "1_a_model_on_a_mesh",
    "2_scoring_a_passage",
    "3_a_graph_becomes_a_curriculum",
    "4_export_and_use",
    "5_reproduction",
)
SECONDS = 60  # on a quiet machine of two cores
# What the cell named "result" must print.
RESULTS = {
    "1_a_model_on_a_mesh": r"The capital of France is +Paris +the same on all meshes\n"
    r"(.+ the same on all meshes\n){7}"
    r"393,216 logits on 3 meshes: equal to 1e-3: True, .*",
    "2_scoring_a_passage": r"by hand and by log_likelihood: equal to 1e-3\n"
    r"cosine prefers passage \d+ \(without the answer\), "
    r"alignment passage \d+ \(with the answer\)",
    "3_a_graph_becomes_a_curriculum": r"\d\d examples with \d+ positives and \d+ negatives; "
    r"read back the same\n"
    r"a positive among the negatives: False",
    "4_export_and_use": r"sentence-transformers equal to 1e-5: True\n"
    r"read back, the same vectors: True\n"
    r"training changed them: True",
    "5_reproduction": r"musique: ours [+-]0\.\d{3}, on marked passages [+-]0\.\d{3}: .+\n"
    r"fairytale: ours \+0\.\d{3}, on marked passages \+0\.\d{3}: \d+% of that",
}


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(notebook: dict) -> list[dict]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def shown(notebook: dict, cell: str) -> str:
    """What a cell printed."""
    (match,) = (x for x in notebook["cells"] if x["id"] == cell)
    return "".join("".join(output["text"]) for output in match["outputs"])


def execute(name: str) -> dict:
    """A notebook with what it shows when run now; fails where a cell does."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra [notebooks]")
    nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra [notebooks]")
    for peer in (
        "ipykernel",
        "matplotlib",
        *(["sentence_transformers"] if name.startswith("4") else []),
    ):
        pytest.importorskip(
            peer,
            reason="notebooks need the extra [notebooks], the fourth sentence-transformers too",
        )
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    env = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore:IProgress not found",
    }  # of tqdm, without widgets
    for name in ("XLA_FLAGS", "ARK_STUDIES"):
        env.pop(name, None)
    client = nbclient.NotebookClient(
        notebook, timeout=10 * SECONDS, record_timing=False, kernel_name="python3"
    )
    client.execute(cwd=str(FOLDER), env=env)
    for number, cell in enumerate((x for x in notebook["cells"] if x["cell_type"] == "code"), 1):
        cell["execution_count"] = number
        cell["metadata"] = {}
        # What was printed comes in as many pieces as the clock would have it.
        joined: list = []
        for output in cell["outputs"]:
            if (
                joined
                and output["output_type"] == "stream" == joined[-1]["output_type"]
                and output["name"] == joined[-1]["name"]
            ):
                joined[-1]["text"] += output["text"]
            else:
                joined.append(output)
        cell["outputs"] = joined
    notebook["metadata"]["language_info"] = {"name": "python"}  # and not which one it was
    return json.loads(nbformat.writes(notebook))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_to_its_expected_result(name, real_models):
    worked = lambda: sum(
        resource.getrusage(resource.RUSAGE_CHILDREN)[:2]
    )  # by the clock it would depend on who else is at work
    before = worked()
    notebook = execute(name)
    assert 0 < worked() - before < 2 * SECONDS
    others = [
        output
        for output in outputs(notebook)
        if (output["output_type"], output.get("name"))
        not in {("stream", "stdout"), ("display_data", None)}
    ]
    assert not others
    assert re.fullmatch(RESULTS[name], shown(notebook, "result").strip()), shown(notebook, "result")


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_come_from_a_run_without_machine_details(name):
    path = FOLDER / f"{name}.ipynb"
    notebook, text = read(name), path.read_text(encoding="utf-8")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert re.fullmatch(RESULTS[name], shown(notebook, "result").strip())
    assert path.stat().st_size < 200_000
    assert {output["output_type"] for output in outputs(notebook)} <= {"stream", "display_data"}
    assert not re.search(r"/tmp|/home|/root|/usr/|/work|\d\d:\d\d:\d\d|Warning|iopub", text)
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    prose = sum(
        len("".join(cell["source"]))
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
    )
    assert prose > 1500  # they teach


def test_the_notebooks_are_linted():
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", FOLDER],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    ).stdout
    notebooks = {Path(line).stem for line in checked.split() if line.endswith(".ipynb")}
    assert notebooks == set(NAMES)


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        began, before = time.monotonic(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        content = json.dumps(execute(name), indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.ipynb").write_text(content, encoding="utf-8")
        cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
        print(
            f"{name}: {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU, {len(content):,} bytes"
        )
