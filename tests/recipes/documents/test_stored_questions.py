"""Questions on the disk: those without negatives are stored as in earlier versions."""

import pyarrow.parquet as pq

from ark_jax.data.records import Question
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.documents.corpus import save_questions

PLAIN = Question("a", "When?", ("1802",), ("d",), ("in 1802",), "dates")
PAIR = Question("b", "Where?", (), ("d",), negatives=("n",))


def test_the_negatives_column_is_stored_only_if_needed(tmp_path):
    for name, questions in (("none", []), ("plain", [PLAIN]), ("both", [PLAIN, PAIR])):
        save_questions(questions, tmp_path / name)
        assert load_rows(tmp_path / name, Question) == questions
        columns = pq.read_schema(tmp_path / name).names
        assert columns[:6] == ["id", "question", "answers", "documents", "evidence", "group"]
        assert ("negatives" in columns) == (name == "both")
