"""The benchmark that meets an accelerator first, in its tiny form on this CPU."""

import importlib
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from ark_jax.models import kernels

SCRIPT = REPOSITORY / "tests" / "benchmarks" / "accelerator.py"


@pytest.mark.slow
def test_the_accelerator_table_is_complete_without_failures(tmp_path):
    out = tmp_path / "table.md"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--tiny", f"--out={out}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    table = out.read_text()
    assert done.returncode == 0 and "FAILED" not in table, table + done.stderr[-2000:]
    assert table == "".join(line + "\n" for line in done.stdout.splitlines() if line[:1] == "|")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert {len(row) for row in rows} == {5}
    verdicts = {(row[0], row[1]): row[4] for row in rows}
    offered = {"xla": 3, "cudnn": 2, "splash": 2, "tokamax": 2}
    kinds = [what.split(",")[0] for part, what, *_ in rows if part == "attention"]
    assert {kernel: kinds.count(kernel) for kernel in kernels.KERNELS[1:]} == offered
    assert verdicts["attention", "splash, bfloat16"] == "ok"
    counts = {part: sum(row[0] == part for row in rows) for part, *_ in rows}
    del counts["attention"]
    assert counts == {
        "device": 2,
        "products": 2,
        "forward": 2,
        "training": 2,
        "scoring": 1,
        "generation": 1,
        "GRPO step": 1,
        "encoding": 2,
        "PageRank": 2,
        "nearest keys": 1,
        "memory": 1,
    }
    judged = [row for row in rows if row[0] not in ("device", "attention", "products", "memory")]
    assert {row[4] for row in judged} == {"ok"}


@pytest.mark.slow
def test_a_wrong_kernel_is_detected(mesh, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    script = importlib.import_module(SCRIPT.stem)
    nothing = {"xla": (), "cudnn": (), "tokamax": ()}
    monkeypatch.setattr(script, "TYPES", nothing | {"splash": ("float32", "bfloat16")})
    right = kernels._attend_by_splash

    def wrong(*rows, causal, **options):
        return right(*rows, causal=False, **options)  # later tokens are seen

    monkeypatch.setattr(kernels, "_attend_by_splash", wrong)
    rows = list(script.attention_rows(script.TINY))
    assert [row.what for row in rows] == ["splash, float32", "splash, bfloat16"]
    assert all(row.verdict.startswith("FAILED: the limit is") for row in rows)
    script.attended.clear_cache()
