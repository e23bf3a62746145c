"""Small folders of data in the forms in which the papers' data sets are published."""

import json
from pathlib import Path

from support import bar_world, gpr_world, star_world, world

DEMO = gpr_world.DEMO


def save_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def long_documents(folder: Path) -> None:
    """LongBench's hotpotqa and musique, UltraDomain's fin and legal: two stories for each."""
    texts = {x["id"]: x["text"][:2500] for x in read_rows(world.EMBEDDED / "documents.jsonl")}
    asked = read_rows(world.EMBEDDED / "questions.jsonl")
    names = iter(texts)
    for name in ("longbench/hotpotqa", "longbench/musique", "ultradomain/fin", "ultradomain/legal"):
        stories = [next(names), next(names)]
        rows = [
            {
                "_id": f"{i:032x}",
                "input": question["question"],
                "context": texts[story],
                "answers": question["answers"],
                "length": len(texts[story].split()),
                "dataset": Path(name).name,
                "language": "en",
                "all_classes": None,
            }
            for story in stories
            for i, question in enumerate(x for x in asked if x["documents"] == [story])
            if i < 3
        ]
        for number, row in enumerate(rows):
            row["_id"] = f"{number:032x}"  # both files have these
        save_rows(folder / f"{name}.jsonl", rows)


def rows_with_passages(folder: Path) -> None:
    """BAR-RAG's training rows and two test sets: bells of two metals, four passages a question."""
    places = bar_world.PLACES
    passages = [
        {
            "id": str(i),
            "title": f"Bell {i}",
            "text": f"The bell of {place} is of {bar_world.metal(i)}.",
        }
        for i, place in enumerate(places)
    ]
    for name, numbers in (("train", range(7)), ("nq", range(7, 10)), ("popqa", range(5, 8))):
        save_rows(
            folder / "bar_rag" / f"{name}.jsonl",
            [
                {
                    "question": f"{start} the bell of {places[i]}{end}?",
                    "answers": [bar_world.metal(i)],
                    "ctxs": [
                        passages[(i + k) % len(places)] | {"score": 9.0 - k} for k in range(4)
                    ],
                }
                for i in numbers
                for start in ("Of what is", "What metal is")
                for end in ([""] if name == "train" else [" "])
            ],
        )


def freebase(folder: Path) -> None:
    """WebQSP and GrailQA: the demo's questions, and its graph with mids and names as triples."""
    names = dict(
        line.split("\t")[:2] for line in (DEMO / "names.tsv").read_text().splitlines() if line
    )
    ids = {name: f"m.0{number}" for number, name in enumerate(names)}
    mids = {names[id]: mid for id, mid in ids.items()}
    lines = [line.split("\t") for line in (DEMO / "graph.tsv").read_text().splitlines()[1:]]
    triples = [(ids.get(h, h), f"demo.{r}", ids.get(t, t)) for h, r, t in lines]
    triples += [(mid, "type.object.name", f'"{names[id]}"@en') for id, mid in ids.items()]
    asked = [
        x for x in read_rows(star_world.QUESTIONS) if {*x["answers"], *x["entities"]} <= mids.keys()
    ]
    train, test = asked[::2], asked[1::2][:10]
    for name in ("webqsp", "grailqa"):
        (folder / name).mkdir(parents=True)
        text = "".join("\t".join(triple) + "\n" for triple in triples)
        (folder / name / "graph.tsv").write_text(text)
    for part, rows in (("train", train), ("test", test)):
        content = {"Version": "1.0", "Questions": [_webqsp(row, mids) for row in rows]}
        (folder / "webqsp" / f"WebQSP.{part}.json").write_text(json.dumps(content, indent=2))
    for part, rows in (("train", train), ("dev", test)):
        content = [_grailqa(number, part, row, mids) for number, row in enumerate(rows)]
        (folder / "grailqa" / f"grailqa_v1.0_{part}.json").write_text(json.dumps(content, indent=4))


def _webqsp(row: dict, mids: dict[str, str]) -> dict:
    answers = [
        {"AnswerType": "Entity", "AnswerArgument": mids[name], "EntityName": name}
        for name in row["answers"]
    ]
    parses = [
        {"TopicEntityMid": mids[x], "Answers": answers, "Sparql": ""} for x in row["entities"]
    ]
    return {"QuestionId": row["id"], "RawQuestion": row["question"], "Parses": parses}


def _grailqa(number: int, part: str, row: dict, mids: dict[str, str]) -> dict:
    return {
        "qid": (1 + (part == "dev")) * 1000 + number,
        "question": row["question"],
        "answer": [
            {"answer_type": "Entity", "answer_argument": mids[x], "entity_name": x}
            for x in row["answers"]
        ],
        "graph_query": {
            "nodes": [{"nid": 0, "node_type": "entity", "id": mids[x]} for x in row["entities"]]
        },
        "level": "i.i.d." if number % 2 else "zero-shot",
    }
