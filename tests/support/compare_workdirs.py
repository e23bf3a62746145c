"""Compares what two runs made: `PYTHONPATH=tests python -m support.compare_workdirs OLD NEW`.

It prints each file whose bytes differ, and whether the keys of the cached LLM replies are the same.
A refactoring shows with it that it changes nothing that the pipeline computes.
"""

import json
import sys
from pathlib import Path


def digests(workdir: Path) -> dict[str, str]:
    """stage/file -> sha256, of all stages but the report, which shows how long each one took."""
    files = {}
    for path in sorted(workdir.glob("*/manifest.json")):
        if path.parent.name != "report":
            outputs = json.loads(path.read_text())["outputs"]
            files |= {f"{path.parent.name}/{name}": digest for name, (_, digest) in outputs.items()}
    return files


def reply_keys(workdir: Path) -> set[str]:
    path = workdir / "llm" / "replies.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {json.loads(line)["key"] for line in lines}


def differences(old: Path, new: Path) -> list[str]:
    """One line for each file that differs or is missing, and one if reply keys differ."""
    before, after = digests(old), digests(new)
    lines = [
        f"{name}: {'differs' if name in before and name in after else 'only in one'}"
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    ]
    keys = reply_keys(old) ^ reply_keys(new)
    return lines + ([f"llm/replies.jsonl: {len(keys)} keys are only in one"] if keys else [])


def main(old: str, new: str) -> int:
    lines = differences(Path(old), Path(new))
    print("\n".join(lines) or f"equal: {len(digests(Path(old)))} files and all reply keys")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
