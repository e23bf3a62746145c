"""`ark-jax check` on graphs of triples, their names and their questions."""

import pytest

from ark_jax import __main__

FACTS = "a|likes|b\nb|likes|a\na|likes|a\nb|knows|c\na|likes|b\n"


def printed(capsys, *args) -> tuple[int, list[str]]:
    status = __main__._main(["check", *map(str, args)])
    return status, capsys.readouterr().out.splitlines()


def test_check_counts_a_graph(tmp_path, capsys):
    path = tmp_path / "kb.txt"
    path.write_text(FACTS)
    status, lines = printed(capsys, path)
    assert status == 0
    for line in ("triples: 4", "duplicates: 1", "self loops: 1", "no problem found"):
        assert line in lines


def test_check_reports_a_faulty_row_of_a_graph(tmp_path, capsys):
    path = tmp_path / "kb.txt"
    path.write_text(FACTS + "a|b\n")
    status, lines = printed(capsys, path)
    assert status == 1 and f"{path}:6: 2 field(s)" in "\n".join(lines)
    assert lines[-1] == "1 problem(s)"


def test_check_links_questions_to_nodes_by_name(tmp_path, capsys):
    for name, text in {
        "kb.txt": FACTS,
        "names.tsv": "a\tAda\nb\tBert\nc\tCleo\n",
        "relations.tsv": "likes\tis fond of\nknows\tknows\n",
        "questions.txt": "who likes [Ada]\tBert\nwho likes [Adah]\tZoe\n",
    }.items():
        (tmp_path / name).write_text(text)
    flags = {"names": "names.tsv", "relation-names": "relations.tsv", "questions": "questions.txt"}
    args = [f"--{flag}={tmp_path / name}" for flag, name in flags.items()]
    status, lines = printed(capsys, tmp_path / "kb.txt", *args)
    assert status == 0
    for line in (
        "without name: 0",
        "hubs: Ada (4 triples), Bert (3 triples), Cleo (1 triples)",
        "questions: 2",
        "topics absent: 1",
        "without answer in graph: 1",
        "topic 'Adah' of question 'questions:2' is not in the graph; nearest: 'Ada'",
    ):
        assert line in lines
    (tmp_path / "questions.txt").write_text("who likes [Ada]\tBert\nwho\n")
    status, lines = printed(capsys, tmp_path / "kb.txt", *args)
    assert status == 1 and "questions.txt:2: 1 field(s)" in "\n".join(lines)
    status, lines = printed(capsys, tmp_path / "absent.txt", args[2])
    assert status == 1 and lines[-1] == "1 problem(s)" and "does not exist" in lines[0]


def test_check_accepts_a_file_of_questions_alone(tmp_path, capsys):
    path = tmp_path / "questions.txt"
    path.write_text("who likes [Ada]\tBert\n")
    status, lines = printed(capsys, path)
    assert status == 0 and lines[:2] == [
        "format: questions over a graph of triples",
        "questions: 1",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "ark-jax check needs FILE, as in: ark-jax check"),
        (["a", "b", "c"], "unexpected 'c'"),
        (["a", "b", "--names=x"], "TEST stands alone"),
        (["a", "--name=x"], "--name=x (did you mean --names?)"),
        (["a", "--names="], "argument --names: it names no file"),
        (["--names=x"], "ark-jax check needs FILE"),
    ],
)
def test_check_refuses_invalid_arguments(args, message, capsys):
    assert __main__._main(["check", *args]) == 1
    assert message in capsys.readouterr().err
