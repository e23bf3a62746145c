"""`ark-jax retrieve`: the triples or paths of a graph that fit the questions of a file, as JSONL.

A retriever of vectors gives triples. A pair scorer gives relation paths.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from ark_jax.cli.flags import Flags, flag
from ark_jax.cli.process import (
    is_closed_output,
    log_on_stderr,
    message_with_fix,
    prepare_environment,
)
from ark_jax.runtime import log, storage
from ark_jax.runtime.shown import json_line

INVERSE = {"yes": True, "no": False, "": None}
ONLY = {"index": "triples", "beam": "paths", "inverse": "paths"}  # flag -> what it is for


class Retrieve(Flags):
    """Writes a row for each question to the standard output, and what is logged to stderr."""

    model: str = flag(
        "--model=DIR",
        "the export of a run, or any model of its kind. A retriever gives triples, a pair scorer "
        "relation paths from the question's topics, or from the names in its text",
    )
    graph: str = flag("--graph=FILE", "triples: a file, folder or glob")
    questions: str = flag("--questions=FILE", "a file or glob")
    names: str = flag("--names=FILE", "names of the graph's nodes", "")
    relation_names: str = flag("--relation-names=FILE", "names of its relations", "")
    k: int | None = flag("--k=N", "how many: 20 triples or 5 paths", None)
    hops: int = flag(
        "--hops=N", "longest path, or how far triples go along the graph; 1: cosines alone", 3
    )
    index: str = flag("--index=DIR", "where the vectors of triples are kept", "")
    beam: int | None = flag("--beam=N", "paths that are kept at each hop: 5", None)
    inverse: str = flag(
        "--inverse=yes|no", "whether paths also go from tail to head; an export knows", ""
    )
    relations: str = flag(
        "--relations=last|whole", "how a relation is written; an export knows", ""
    )

    example = "ark-jax retrieve --model=DIR/export --graph=FILE --questions=FILE > out.jsonl"

    def run(self) -> int:
        prepare_environment()
        try:
            with log_on_stderr() as results:
                for rows in self.row_batches():
                    text = "".join(map(json_line, rows))
                    with contextlib.redirect_stdout(results):
                        log.show(text)
        except OSError as error:
            if is_closed_output(error):
                raise
            raise OSError(message_with_fix(error, self.folder, flag="--index")) from error
        return 0

    def row_batches(self) -> Iterator[list[dict]]:
        """Yields the rows of each batch of questions. Reads all inputs first.

        Raises:
            BadInput: the questions have problems.
            ValueError: a flag does not fit the kind of model.
        """
        from ark_jax.data.records import BadInput
        from ark_jax.graph.beam import BeamRules
        from ark_jax.graph.retrieved_rows import path_rows, triple_rows
        from ark_jax.graph.triple_questions import read_questions
        from ark_jax.graph.triple_retriever import WalkRules
        from ark_jax.graph.triples import Triples
        from ark_jax.models.pair_folder import scores_pairs

        kind = "paths" if scores_pairs(self.model) else "triples"
        for name in ONLY:
            if getattr(self, name) and ONLY[name] != kind:
                raise ValueError(
                    f"bad flag: --{name} is for {ONLY[name]}, but {self.model} is a model that "
                    f"finds {kind}; drop the flag or give another model"
                )
        questions, findings = read_questions(self.questions)
        if findings.problems:
            raise BadInput(findings.problems)
        for remark in findings.remarks:
            log.say(f"  {remark}")
        names, relation_names = self.names or None, self.relation_names or None
        graph = Triples.read(self.graph, names=names, relation_names=relation_names)
        inputs = {"model": self.model, "graph": graph, "questions": questions}
        if kind == "paths":
            rules, inverse = BeamRules(self.beam or 5, self.hops), INVERSE[self.inverse]
            by = self.relations or None
            return path_rows(**inputs, k=self.k or 5, rules=rules, inverse=inverse, by=by)
        log.say(f"  index: {self.folder}; --index=DIR names another folder")
        rules, by = WalkRules(hops=self.hops), self.relations or "last"
        return triple_rows(**inputs, folder=self.folder, k=self.k or 20, rules=rules, by=by)

    @property
    def folder(self) -> Path:
        """The folder of the triples' vectors: in the cache, unless --index names another."""
        if self.index:
            return storage.local_path(self.index)
        model = self.model if storage.is_hub_name(self.model) else storage.absolute(self.model)
        names = json.dumps([model, storage.absolute(self.graph)])
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        return storage.cache_folder() / "triple_indices" / digest
