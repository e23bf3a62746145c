"""Every bad value is reported at its place, with its fix."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.input_files import (
    ASKED,
    DOCUMENT,
    HOTPOT,
    LONG,
    MUSIQUE,
    QUESTION,
    SHEETS,
    STORY,
    A,
    D,
    Q,
    S,
    damaged,
    plain,
    sound,
    write,
)

from ark_jax.data import readers
from ark_jax.data.records import BadInput


def swapped(row: dict, **values: object) -> str:
    """The row as a line of JSONL, with other values; None leaves the field out."""
    return json.dumps({k: v for k, v in {**row, **values}.items() if v is not None}) + "\n"


@pytest.mark.parametrize(
    "text", ["\u200b", "\ufeff\n", "\0", "\u2800", "\u3164", "\u202e", "\xad"], ids=ascii
)
def test_a_text_without_visible_characters_is_refused(text, tmp_path):
    for field, value in (("answers", ["yes", text]), ("question", text)):
        _, problems = readers.read(write(tmp_path / field, question(**{field: value})))
        (problem,) = problems
        assert "holds only characters that show nothing" in problem.message, problem


def question(**values: object) -> dict[str, str | bytes]:
    return plain(questions=swapped(json.loads(QUESTION), **values))


def document(**values: object) -> dict[str, str | bytes]:
    return plain(documents=DOCUMENT + swapped({"id": "e", "text": "More."}, **values))


def hotpot(**values: object) -> dict[str, str]:
    return {"f.jsonl": swapped(HOTPOT, **values)}


def musique(**values: object) -> dict[str, str]:
    return {"f.jsonl": swapped(MUSIQUE, **values)}


def paragraph(**values: object) -> dict[str, str]:
    first, second = MUSIQUE["paragraphs"]
    return musique(paragraphs=[first, json.loads(swapped(second, **values))])


# name: (files, then the file, line and field of the one problem, and words of its message)
BAD = {
    "unknown folder": (
        {"notes.odd": "hi"},
        "",
        0,
        "",
        "holds notes.odd, no known format; give a folder of .txt, .md,",
    ),
    "empty folder": ({}, "", 0, "", "an empty folder, no known format"),
    "plain without documents": (
        {"document.jsonl": DOCUMENT, Q: QUESTION},
        D,
        0,
        "",
        "did you mean document.jsonl",
    ),
    "questions alone": (
        {Q: QUESTION},
        D,
        0,
        "",
        "does not exist, but questions.jsonl does; add it, or put text files beside the questions",
    ),
    "a folder for a file": (
        {"questions.jsonl/x": "", D: DOCUMENT},
        Q,
        0,
        "",
        "cannot be read (Is a directory)",
    ),
    "empty file": (plain(questions=""), Q, 0, "", "is empty; fill it"),
    "only blanks and a BOM": (plain(questions="\ufeff \n\u2003\n"), Q, 0, "", "is empty; fill it"),
    "UTF-16 that is cut off": (
        {"f.jsonl": LONG.encode("utf-16")[:-1]},
        "f.jsonl",
        1,
        "",
        "is not utf-16 (truncated data); copy it again",
    ),
    "invalid UTF-8": (
        plain(questions=QUESTION.encode() + b'{"caf\xe9": "\xc3\xa9"}\n'),
        Q,
        2,
        "",
        "byte 6 of line 2 (0xe9) is not UTF-8; save",
    ),
    "truncated last line": (
        plain(questions=QUESTION + QUESTION[:20]),
        Q,
        2,
        "",
        "invalid JSON at column 13 (Unterminated string starting at); the last line is cut off",
    ),
    "unclosed object": (
        plain(questions='{"id": "x"\n' + QUESTION),
        Q,
        1,
        "",
        "invalid JSON at column 11 (Expecting ',' delimiter)",
    ),
    "invalid JSON": (
        plain(questions="{'id': 1}\n" + QUESTION),
        Q,
        1,
        "",
        "invalid JSON at column 2 (Expecting prop",
    ),
    "number too long": (
        plain(questions=QUESTION + "9" * 5000 + "\n"),
        Q,
        2,
        "",
        "invalid JSON (Exceeds the limit",
    ),
    "nested too deep": (
        plain(questions=QUESTION + '{"a":' + "[" * 200_000 + "\n"),
        Q,
        2,
        "",
        "invalid JSON (",
    ),
    "object over lines": (
        plain(questions=json.dumps(HOTPOT, indent=1)),
        Q,
        1,
        "",
        "runs over several lines; write",
    ),
    "row is a list": (
        plain(questions=QUESTION + '["q2"]\n'),
        Q,
        2,
        "",
        "the line is a list; write an object",
    ),
    "field missing": (question(question=None), Q, 1, "question", "is missing; add it"),
    "field misspelt": (
        question(answers=None, anwsers=["x"]),
        Q,
        1,
        "answers",
        "rename 'anwsers' to 'answers'",
    ),
    "optional misspelt": (
        question(evidences=["x"]),
        Q,
        1,
        "evidence",
        "rename 'evidences' to 'evidence'",
    ),
    "question blank": (question(question=" \n"), Q, 1, "question", "is empty; fill it in"),
    "question null": (
        plain(questions=QUESTION.replace('"When?"', "null")),
        Q,
        1,
        "question",
        "is null; write a str",
    ),
    "answers a number": (question(answers=1802), Q, 1, "answers", "is a number; write a list"),
    "answers a string": (question(answers="1802"), Q, 1, "answers", "is a string; write a list"),
    "nothing beside the question": (
        question(answers=[], documents=None),
        Q,
        1,
        "answers",
        "is missing, and so are documents and evidence; add one of them",
    ),
    "answer empty": (
        question(answers=["1802", ""]),
        Q,
        1,
        "answers",
        "item 2 is empty; fill it in or delete it",
    ),
    "answer a number": (
        question(answers=[1802]),
        Q,
        1,
        "answers",
        "item 1 is a number; write a string",
    ),
    "half a pair": (
        question(answers=["\ud83d"]),
        Q,
        1,
        "answers",
        "item 1 holds bytes or \\u escapes that are",
    ),
    "id a number": (question(id=7), Q, 1, "id", "is a number; write a string"),
    "document a string": (question(documents="d"), Q, 1, "documents", "is a string; write a list"),
    "unknown document": (
        question(documents=["d", "é"]),
        Q,
        1,
        "documents",
        "'é' is not found in documents.jsonl; add that document or mend the id",
    ),
    "duplicate question": (
        plain(questions=QUESTION + "\n" + QUESTION),
        Q,
        3,
        "id",
        "repeats 'q' of line 1; give every row its own id",
    ),
    "duplicate document": (document(id="d"), D, 2, "id", "repeats 'd' of line 1"),
    "document empty": (document(text=""), D, 2, "text", "is empty; fill it in"),
    "title a list": (document(title=["x"]), D, 2, "title", "is a list; write a string"),
    "evidence elsewhere": (
        plain(
            DOCUMENT + '{"id": "e", "text": "It was rebuilt."}\n',
            question(evidence=["The mill burned", "It was rebuilt."])[Q],
        ),
        Q,
        1,
        "evidence",
        "item 2 is not found in its documents ('It was rebuilt.'); "
        "quote the document letter by letter",
    ),
    "evidence wrapped": (
        question(evidence=["The mill\nburned"]),
        Q,
        1,
        "evidence",
        "item 1 differs from the document in blanks ('The mill burned')",
    ),
    "unknown rows": (
        {"f.jsonl": '\n{"title": "T", "body": "x"}\n'},
        "f.jsonl",
        2,
        "",
        "['title', 'body']; say which is which, such as --columns=question=title,answers=body ",
    ),
    "array: no object": (
        {"f.json": f"[{LONG}, 5]"},
        "f.json",
        2,
        "",
        "row 2 is a number; write an object",
    ),
    "array: cut off": (
        {"f.json": f"[{LONG},\n{LONG[:20]}"},
        "f.json",
        2,
        "",
        "row 2: invalid JSON at line 3, column 21 (Expecting ':' delimiter); mend it",
    ),
    "array: no comma": (
        {"f.json": f"[{LONG.strip()} {LONG}]"},
        "f.json",
        1,
        "",
        "(Expecting ',' or ']')",
    ),
    "array: more text": (
        {"f.json": f"[{LONG}] x"},
        "f.json",
        1,
        "",
        "line 2, column 3 (Text after the array)",
    ),
    "array: empty": ({"f.json": "[ ]"}, "f.json", 0, "", "is an empty array; fill it"),
    "array: field": (
        {"f.json": f'[{LONG}, {{"_id": "2", "input": "x", "answers": ["y"]}}]'},
        "f.json",
        2,
        "context",
        "is missing in row 2; add it",
    ),
    "array: duplicate": (
        {"f.json": f"[{LONG}, {LONG}]"},
        "f.json",
        2,
        "_id",
        "repeats '1' of row 1 in row 2; give",
    ),
    "longbench answer": (
        {"f.jsonl": LONG.replace('["1802"]', '""')},
        "f.jsonl",
        1,
        "answers",
        "is empty",
    ),
    "longbench answers": (
        {"f.jsonl": LONG.replace('["1802"]', "{}")},
        "f.jsonl",
        1,
        "answers",
        "is an object; write a list",
    ),
    "hotpot pair": (
        hotpot(context=[["Mill", "no list"]]),
        "f.jsonl",
        1,
        "context",
        "item 1 is not [title, [sentence, ...]]; write it so",
    ),
    "hotpot paragraph": (
        hotpot(context=[*HOTPOT["context"], ["Void", [" "]]]),
        "f.jsonl",
        1,
        "context",
        "item 3 ('Void') is empty",
    ),
    "hotpot negative": (
        hotpot(supporting_facts=[["Ada", -1]]),
        "f.jsonl",
        1,
        "supporting_facts",
        "item 1 is not [title, sentence index from 0]; write it so",
    ),
    "hotpot fact form": (
        hotpot(supporting_facts={"title": ["Ada"]}),
        "f.jsonl",
        1,
        "supporting_facts",
        "is an object without title and sent_id, two lists of one length; write them",
    ),
    "hotpot columns": (
        hotpot(context={"title": ["Ada", "Mill"], "sentences": [["Ada was born here."]]}),
        "f.jsonl",
        1,
        "context",
        "is an object without title and sentences, two lists of one length; write them",
    ),
    "hotpot empty columns": (
        hotpot(context={"title": [], "sentences": []}),
        "f.jsonl",
        1,
        "context",
        "is empty; list at least",
    ),
    "hotpot test set": (hotpot(answer=None), "f.jsonl", 1, "answer", "is missing; add it"),
    "musique paragraph": (
        paragraph(paragraph_text=None),
        "f.jsonl",
        1,
        "paragraphs",
        "item 2: paragraph_text is missing; add it",
    ),
    "musique flag": (
        paragraph(is_supporting="no"),
        "f.jsonl",
        1,
        "paragraphs",
        "item 2: is_supporting is a string; write true or false",
    ),
    "musique item": (
        musique(paragraphs=["x"]),
        "f.jsonl",
        1,
        "paragraphs",
        "item 1 is a string; write an ob",
    ),
    "musique alias": (
        musique(answer_aliases=["x", " "]),
        "f.jsonl",
        1,
        "answer_aliases",
        "item 2 is empty",
    ),
    "musique unanswerable": (
        musique(answerable=False),
        "f.jsonl",
        1,
        "answerable",
        "the paragraphs do not hold the answer; delete the row",
    ),
    "tale: no stories": ({A: SHEETS[A]}, "section-stories", 0, "", "does not exist"),
    "tale: empty sheet": ({**SHEETS, A: ""}, A, 0, "", "is empty"),
    "tale: no CSV": (
        {S: STORY, "questions/b.txt": ""},
        "questions",
        0,
        "",
        "holds no CSV file; put",
    ),
    "tale: no story": (
        {**SHEETS, "questions/lost-questions.csv": SHEETS[A]},
        "questions/lost-questions.csv",
        0,
        "",
        "the story 'lost' is not found in section-stories; add lost-story.csv",
    ),
    "tale: two stories": (
        {**SHEETS, "section-stories/x/tale-story.csv": STORY},
        "section-stories/x/tale-story.csv",
        0,
        "",
        "the story 'tale' is also in",
    ),
    "tale: two sheets": (
        {**SHEETS, "questions/x/tale-questions.csv": SHEETS[A]},
        "questions/x/tale-questions.csv",
        0,
        "",
        "questions on 'tale' are also in",
    ),
    "tale: column": (
        {**SHEETS, A: "question_id;question\n1;What?\n"},
        A,
        1,
        "question_id",
        "no such column among ['question_id;question']; name question_id, cor_section, question, "
        "answer1 in the first line",
    ),
    "tale: section": (
        {**SHEETS, A: ASKED + '\n1,"1,9",What?,this,\n'},
        A,
        3,
        "cor_section",
        "section '9' is not found in the story 'tale'; mend the number",
    ),
    "tale: cells": (
        {**SHEETS, A: SHEETS[A] + "2,1,How, then?,so,\n"},
        A,
        3,
        "",
        "6 cells under a header of 5; put cells that hold the delimiter or line breaks in quotes",
    ),
    "tale: quotes": (
        {**SHEETS, S: STORY + '3,"And\nthen\n'},
        S,
        5,
        "",
        "is broken CSV (unexpected end of data)",
    ),
    "tale: empty section": (
        {**SHEETS, S: STORY + "3, \n4,x\n"},
        S,
        5,
        "text",
        "is empty; fill it in",
    ),
    "tale: no answer": (
        {**SHEETS, A: ASKED + "1,1,What?, ,\n"},
        A,
        2,
        "answer1",
        "as are all other answers; write",
    ),
    "tale: asked twice": (
        {**SHEETS, A: SHEETS[A] + "1,2,What?,x,\n"},
        A,
        3,
        "question_id",
        "'1' asks the same twice",
    ),
    "tale: header only": ({**SHEETS, A: ASKED}, A, 0, "", "holds no row below the header"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_problem_is_reported_with_its_place_and_fix(tmp_path, name):
    files, file, line, field, words = BAD[name]
    path = write(tmp_path, files) / (file if file.startswith("f.") else "")
    _, problems = readers.read(path)
    assert [(p.file, p.line, p.field) for p in problems] == [(str(tmp_path / file), line, field)], (
        problems
    )
    assert words in problems[0].message
    what, fix = problems[0].message.rsplit("; ", 1)
    assert what and fix and not fix.endswith(".")
    with pytest.raises(BadInput) as caught:
        readers.load(path)
    assert caught.value.problems == problems


def test_every_bad_row_is_reported(tmp_path):
    documents = (
        DOCUMENT
        + '{"id": "e", "text": 5}\n'
        + '{"text": "no id"}\n'
        + '{"id": "f", "text": "Fine."}'
    )
    good = QUESTION.strip()
    lines = [
        good,
        '{"id": "broken"',
        '{"id": "\xc3\xa9caf\xe9"}',
        "17",
        good.replace('"q"', '"r"'),
        "{}",
        good.replace('"q"', '"s"').replace('["d"]', '["e"]'),
    ]
    write(tmp_path, plain(documents, "\n".join(lines).encode("latin-1") + b"\n"))
    corpus, problems = readers.read(tmp_path)
    places = {(Path(p.file).name, p.line, p.field) for p in problems}
    assert places == {
        (D, 2, "text"),
        (D, 3, "id"),
        (Q, 2, ""),
        (Q, 3, ""),
        (Q, 4, ""),
        (Q, 6, "id"),
        (Q, 6, "question"),
        (Q, 6, "answers"),
    }
    # "s" asks about a document that has a problem. The problem is reported once, for the document,
    # and "s" is not in the corpus.
    assert [d.id for d in corpus.documents] == ["d", "f"]
    assert [q.id for q in corpus.questions] == ["q", "r"]


def test_problems_of_documents_are_not_repeated_for_each_question(tmp_path):
    write(tmp_path, {Q: QUESTION + QUESTION.replace('"q"', '"r"')})
    corpus, problems = readers.read(tmp_path)
    assert [(Path(p.file).name, p.line) for p in problems] == [(D, 0)] and corpus.questions == []


COLUMNS = {
    **HOTPOT,
    "context": {"title": ["Mill"], "sentences": [["It stands.", " Ada built it."]]},
    "supporting_facts": {"title": ["Mill"], "sent_id": [1]},
}


ROWS = {
    "columns": COLUMNS,
    "plain": json.loads(QUESTION),
    "longbench": json.loads(LONG),
    "hotpotqa": HOTPOT,
    "musique": MUSIQUE,
}


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ROWS)), array=st.booleans())
def test_damaged_values_are_reported_without_a_crash(tmp_path_factory, data, name, array):
    rows = [ROWS[name], data.draw(damaged(ROWS[name]))]
    content = json.dumps(rows) if array else "\n".join(map(json.dumps, rows))
    folder = tmp_path_factory.mktemp("damaged")
    write(folder, plain(DOCUMENT, content) if name == "plain" else {"f": content})
    sound(folder if name == "plain" else folder / "f")
