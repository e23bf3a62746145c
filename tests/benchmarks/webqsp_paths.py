"""STAR ranks WebQSP's relation paths by name, beside the paths that RoG's model of 7B predicts.

    python tests/benchmarks/webqsp_paths.py WORKDIR [--config.FIELD=VALUE ...]

WebQSP's graph is not at hand, but the gold relation paths of its questions are, and what RoG
predicted. Their union is a tree: from the topic 700 relations go on, so a search must choose among
all paths that any question has. Trains on the questions of `train`, measures those of
`validation`. path_hit@1 says whether the first path is a gold one, as for RoG's first.
"""

import json
import os
import sys
from pathlib import Path

from ark_jax import __main__ as command_line
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.recipes.graphs import topic_draw

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[3] / "shared" / "data")) / "kg"
HELD_OUT = 0.5


def topic_of(held_out: bool) -> str:
    """A topic's id that the split puts into this part: the split goes by a hash of topics."""
    ids = (f"topic {number}" for number in range(100))
    drawn = lambda name: topic_draw(TripleQuestion("", "", entities=(name,))) < HELD_OUT
    return next(name for name in ids if drawn(name) == held_out)


def read(part: str) -> list[dict]:
    """The questions of a part that have a gold path."""
    lines = (DATA / "webqsp_paths" / f"{part}.jsonl").read_text("utf-8").splitlines()
    return [row for row in map(json.loads, lines) if any(row["ground_paths"])]


def write_files(folder: Path) -> None:
    """The graph of all gold paths, a name for each topic, and the questions."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {topic_of(held_out=False): read("train"), topic_of(held_out=True): read("validation")}
    edges, questions = set(), []
    for rows in parts.values():
        for row in rows:
            for path in row["ground_paths"]:
                for topic in parts:
                    nodes = [topic, *(" / ".join(path[: i + 1]) for i in range(len(path)))]
                    edges |= set(zip(nodes, path, nodes[1:], strict=False))
    for topic, rows in parts.items():
        for row in rows:
            paths = [path for path in row["ground_paths"] if path]
            questions.append(
                {
                    "id": row["id"],
                    "question": row["question"],
                    "entities": [topic],
                    "answers": sorted({" / ".join(path) for path in paths}),
                    "group": f"{min(map(len, paths))} hops",
                }
            )
    (folder / "graph.tsv").write_text("".join("\t".join(e) + "\n" for e in sorted(edges)), "utf-8")
    (folder / "names.tsv").write_text("".join(f"{topic}\ttopic\n" for topic in parts), "utf-8")
    lines = (json.dumps(question, ensure_ascii=False) + "\n" for question in questions)
    (folder / "questions.jsonl").write_text("".join(lines), "utf-8")


def main(workdir: Path, flags: list[str]) -> None:
    rows = read("validation")
    first = [row["prediction"][0] in row["ground_paths"] for row in rows if row["prediction"]]
    print(
        f"RoG's first path is a gold one for {sum(first) / len(rows):.3f} of {len(rows)} questions"
    )
    files = workdir / "files"
    write_files(files)
    sys.argv = [
        "ark-jax",
        "run",
        "--config=configs/path_questions.py",
        f"--workdir={workdir}",
        f"--config.data.path={files / 'graph.tsv'}",
        f"--config.data.names={files / 'names.tsv'}",
        "--config.data.relation_names=",
        "--config.data.relations=whole",
        f"--config.data.questions={files / 'questions.jsonl'}",
        f"--config.data.held_out={HELD_OUT}",
        "--config.data.few=0",
        "--config.paths.inverse=False",
        "--config.evaluate.questions=0",
        *flags,
    ]
    command_line.main()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
