"""How STAR divides questions: by topic, evenly over groups, without those it cannot learn from."""

import collections
import json

import pytest

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.star import config, data

GROUPS = {"a": 40, "b": 8, "c": 4}


@pytest.fixture
def world(tmp_path):
    rows = [f"topic {i}\tr{i % 3}\tanswer {i}" for i in range(sum(GROUPS.values()))]
    (tmp_path / "graph.tsv").write_text("\n".join([*rows, "topic 0\tr1\ttopic 0", ""]))
    groups = [group for group, count in GROUPS.items() for _ in range(count)]
    questions = [
        {"id": f"q{i}", "question": f"{i}?", "answers": [f"answer {i}"]}
        | {"entities": [f"topic {i}"], "group": group}
        for i, group in enumerate(groups)
    ]
    write(tmp_path, questions)
    return tmp_path


def write(folder, questions: list[dict]) -> None:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    (folder / "questions.jsonl").write_text(lines)


def read(folder) -> list[dict]:
    return list(map(json.loads, (folder / "questions.jsonl").read_text().splitlines()))


def run(folder, **changes) -> tuple[Context, dict, dict]:
    """The stages data and paths, and their counts."""
    c = config.star()
    c.data.path, c.data.questions = str(folder / "graph.tsv"), str(folder / "questions.jsonl")
    c.update_from_flattened_dict(changes)
    workdir = folder / f"run{len(list(folder.glob('run*')))}"
    context, counts = Context(c, workdir, None), []
    for name, stage in (("data", data.ingest), ("paths", data.find_paths)):
        (workdir / name).mkdir(parents=True)
        counts.append(stage(context, workdir / name))
    return context, *counts


def ids(context: Context, part: str) -> set[str]:
    return {question.id for question in data.load_questions(context, part)}


def test_every_question_is_in_one_part(world):
    context, counts, _ = run(world)
    train, test = ids(context, "train"), ids(context, "test")
    assert train.isdisjoint(test) and len(train | test) == 52
    assert 10 < len(test) == counts["test_questions"] < 32


def test_tuning_uses_no_held_out_question(world):
    held_out, _, _ = run(world)
    rest, _, _ = run(world, **{"evaluate.part": "rest"})
    assert ids(rest, "test") and ids(rest, "test").isdisjoint(ids(held_out, "test"))
    assert ids(rest, "train") == ids(held_out, "train") - ids(rest, "test")


def test_validation_takes_from_the_training_questions_alone(world):
    """STAR, section 5.1: "a 90:10 [...] train/validation split", which the test has no part in."""
    whole, _, _ = run(world)
    split, counts, _ = run(world, **{"data.validation": 0.3})
    train, validation = ids(split, "train"), ids(split, "validation")
    assert ids(split, "test") == ids(whole, "test") and train.isdisjoint(validation)
    assert train | validation == ids(whole, "train")
    assert 3 < len(validation) == counts["validation_questions"] < len(train)
    with pytest.raises(ValueError, match="is left to choose an epoch with"):
        run(world, **{"data.validation": 1e-6})


def test_a_limited_number_of_questions_is_drawn_evenly_over_groups(world):
    """A group with fewer than its share leaves the rest to the others."""
    few, _, _ = run(world, **{"data.few": 9, "data.held_out": 0.0})
    groups = collections.Counter(q.group for q in data.load_questions(few, "train"))
    assert groups == {"a": 3, "b": 3, "c": 3}
    more, _, _ = run(world, **{"data.few": 20, "data.held_out": 0.0})
    groups = collections.Counter(q.group for q in data.load_questions(more, "train"))
    assert groups == {"a": 8, "b": 8, "c": 4}
    assert ids(few, "train") < ids(more, "train")
    # At a quarter, a third as many as are trained on choose the epoch.
    _, counts, _ = run(world, **{"data.few": 9, "data.held_out": 0.0, "data.validation": 0.25})
    assert (counts["train_questions"], counts["validation_questions"]) == (9, 3)


def test_all_questions_of_a_topic_are_in_one_part(world):
    """Topics that are found in the text count as those that are named."""
    questions = read(world)
    again = [{**q, "id": f"{q['id']}-again", "question": f"And {q['id']}?"} for q in questions]
    for question in again:
        question["question"] = f"What of {question.pop('entities')[0]}?"
    write(world, questions + again)
    context, _, _ = run(world)
    for part in ("train", "test"):
        topics = collections.Counter(id.split("-")[0] for id in ids(context, part))
        assert set(topics.values()) == {2}


def test_unusable_training_questions_are_counted(world):
    """A missing topic, an answer that the graph lacks, is the topic, or lies too far away."""
    questions = read(world)
    for question, changes in zip(
        questions,
        [
            {"entities": ["nobody"]},
            {"answers": ["nowhere"]},
            {"answers": ["topic 2"]},
            {"answers": ["answer 9"]},
            {"answers": []},
        ],
        strict=False,
    ):
        question |= changes
    write(world, questions)
    context, counts, question_counts = run(world, **{"data.held_out": 0.0})
    assert counts["train_without_topic"] == counts["train_without_answer_in_graph"] == 1
    assert ids(context, "train").isdisjoint({"q0", "q1", "q4"})
    assert question_counts["train_topic_is_answer"] == question_counts["train_out_of_reach"] == 1
    gold = data.load_paths(context, "train")
    assert len(gold) == 52 - 5 and len(gold["q5"]) == 1
    measured, counts, question_counts = run(world, **{"data.held_out": 0.8})
    missing = {"q0", "q1", "q2", "q3"} & ids(measured, "test")
    assert missing and missing.isdisjoint(data.load_paths(measured, "test"))


def test_training_without_any_path_is_refused(world):
    write(world, [{**q, "answers": [q["entities"][0]]} for q in read(world)])
    with pytest.raises(ValueError, match="no training question's answer lies within"):
        run(world)


def test_training_without_questions_is_refused(world):
    write(world, [{**q, "entities": ["nobody"]} for q in read(world)])
    with pytest.raises(ValueError, match="none of 52 questions is left to train on"):
        run(world)


def test_a_test_file_measures_and_all_other_questions_train(world):
    questions = read(world)
    write(world, questions[:30])
    rest = "".join(json.dumps(question) + "\n" for question in questions[30:])
    (world / "test.jsonl").write_text(rest)
    context, counts, _ = run(world, **{"data.test": str(world / "test.jsonl")})
    assert ids(context, "train") == {f"q{i}" for i in range(30)}
    assert ids(context, "test") == {f"q{i}" for i in range(30, 52)}
    assert counts["test_questions"] == 22
    with pytest.raises(ValueError, match=r"config.data.test: the question 'q0' of .* is also in"):
        run(world, **{"data.test": str(world / "questions.jsonl")})
