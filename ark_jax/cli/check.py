"""`ark-jax check`: what is understood of an input, and every bad row."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ark_jax.cli.flags import Flags, bad_flag, flag
from ark_jax.runtime.log import say

if TYPE_CHECKING:
    from ark_jax.data.problems import Reading


def _nonempty_path(text: str) -> str:
    """The path that a flag names. Raises ValueError if it is empty."""
    if not text:
        raise ValueError("it names no file; leave the flag out")
    return text


class ReadingFlags(Flags):
    """Flags for how to read files, where their content does not show it."""

    columns: str = flag(
        "--columns=FIELD=COLUMN,...",
        "which columns of rows are fields, as in question=Prompt,answers=Response",
        "",
    )
    encoding: str = flag("--encoding=NAME", "of all texts; without it, detected in each file", "")
    tolerate: float | None = flag(
        "--tolerate=SHARE", "of rows that may be bad: they are left out; default: 0", None
    )

    def reading(self) -> "Reading":
        """How to read documents. Raises ValueError for an invalid flag."""
        from ark_jax.data.problems import Reading

        return Reading(self.encoding, self.columns, self.tolerate or 0.0)


class DataFlags(ReadingFlags):
    """Flags for files beside the documents or the graph, and for how to read them."""

    questions: str = flag(
        "--questions=FILE",
        "questions, if they are not beside the documents or the graph",
        "",
        read=_nonempty_path,
    )
    names: str = flag(
        "--names=FILE", "of a graph of triples: names of its nodes", "", read=_nonempty_path
    )
    relation_names: str = flag("--relation-names=FILE", "of its relations", "", read=_nonempty_path)

    def files(self) -> dict[str, str]:
        """Field -> file, of the files that flags name, as `triple_check` takes them."""
        names = ("names", "relation_names", "questions")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def reading(self) -> "Reading":
        """How to read documents or a graph.

        Raises:
            ValueError: a flag is invalid, or --columns and a flag for graphs are given.
        """
        if self.columns and (self.names or self.relation_names):
            raise bad_flag(self.verb, "--columns is for documents, --names for graphs")
        return super().reading()


class Check(DataFlags):
    """Prints what a file or folder holds; 1 if there are problems."""

    path: str = flag("FILE", "a file or folder of documents, questions or triples")
    test: str = flag("TEST", "a test set for config.data.test", "")

    example = "ark-jax check my_documents/"

    def run(self) -> int:
        from ark_jax.data import readers
        from ark_jax.evaluate.significance import detectable_difference
        from ark_jax.graph import triple_check

        files, reading = self.files(), self.reading()
        if self.test and files:
            raise bad_flag(
                self.verb, "TEST stands alone: --questions and --names are for one input"
            )
        is_graph = not reading.is_of_documents and triple_check.are_about_graph(self.path, **files)
        if is_graph and not self.test:
            lines, is_good = triple_check.check(self.path, **files, encoding=self.encoding)
            say("\n".join(lines))
            return 0 if is_good else 1
        corpus, problems = readers.read(self.path, self.questions, reading)
        say("\n".join(map(str, (*corpus.remarks, *problems, readers.summary(corpus)))))
        if corpus.questions and not self.test:
            fifth = max(len(corpus.questions) // 5, 1)
            say(f"a test on a fifth, {fifth:,} questions: {detectable_difference(fifth)}")
        unread = readers.mostly_passed_over(corpus)
        say(unread if unread and not problems else readers.verdict(problems, reading.tolerate))
        has_bad_test = bool(self.test) and _check_test(self.test, corpus.texts, reading)
        is_good = readers.is_tolerable(problems, reading.tolerate) and not (unread or has_bad_test)
        return int(not is_good)


def _check_test(path: str, texts: Mapping[str, str], reading: "Reading") -> bool:
    """Prints a summary of a test set and its problems; returns whether they are too many."""
    from ark_jax.data import readers
    from ark_jax.evaluate.significance import detectable_difference

    test, problems = readers.read_test(path, texts, reading)
    count = len(test.questions)
    remark = detectable_difference(count) if count else "none can be read"
    sets = Counter(question.group for question in test.questions)
    several = len(readers.split_paths(path)) > 1
    parts = [f"  {name}: {number:,} questions" for name, number in sets.items() if several]
    summary = "\n".join([*parts, f"test set: {count:,} questions: {remark}"])
    say("\n".join(map(str, (*test.remarks, *problems, summary))))
    say(readers.verdict(problems, reading.tolerate))
    return not readers.is_tolerable(problems, reading.tolerate)
