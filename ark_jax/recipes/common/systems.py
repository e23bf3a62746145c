"""The systems of the closing table: base retriever, tuned stages, and their competitors."""

import dataclasses
from pathlib import Path

from ark_jax.evaluate import answers, retrieval
from ark_jax.retrieval.hyde import NAME as HYDE

DEPTH = 20  # retrieved chunks stored per question, or as many as the metrics look at
WORDS = "bm25"
BASELINES = (WORDS, "full")
LAST_TUNED = "tuned"  # a part of a hybrid, whatever the config trains


@dataclasses.dataclass(frozen=True)
class Systems:
    """Names of systems, by what they are.

    Attributes:
        settings: `config.evaluate`.
        tuned: the stages whose folder holds a tuned retriever, first to last.
        reranker: the stage whose folder holds a trained reranker, if there is one.
        expand: `config.search.expand`; "hyde" is a system of that name.
    """

    settings: object
    tuned: tuple[str, ...] = ()
    reranker: str = ""
    expand: str = "none"

    @property
    def last(self) -> str:
        """The system that is exported: the last tuned one."""
        return (*("base",), *self.tuned)[-1]

    @property
    def compared(self) -> list[str]:
        """Baselines, other retrievers by the last part of their path, HyDE, hybrids, reranked."""
        fixed = (*self.settings.baselines, *self.retrievers, *self.expanded)
        return [*fixed, *self.hybrids, *self.reranked]

    @property
    def retrievers(self) -> list[str]:
        """Other retrievers, by the last part of their path."""
        return [Path(path).name for path in self.settings.retrievers]

    @property
    def expanded(self) -> list[str]:
        """The system that searches for more than the question, if there is one."""
        return [HYDE] if self.expand == HYDE else []

    @property
    def hybrids(self) -> dict[str, list[str]]:
        """Fused systems -> their parts; `tuned` stands for the last tuned one."""
        last = lambda part: self.last if part == LAST_TUNED else part
        parts = [list(map(last, name.split("+"))) for name in self.settings.hybrids]
        return {"+".join(names): names for names in parts}

    @property
    def lexical_parts(self) -> dict[str, str]:
        """Fused systems with BM25 among their parts -> BM25, against which they are tested."""
        return {name: WORDS for name, parts in self.hybrids.items() if WORDS in parts}

    @property
    def shipped_hybrid(self) -> str:
        """The hybrid that an export is used as: BM25 and the last tuned retriever; or none, ""."""
        parts = {WORDS, self.last}
        return next((name for name, names in self.hybrids.items() if {*names} == parts), "")

    @property
    def reranked(self) -> dict[str, str]:
        """The system whose passages a reranker puts in order -> what it is made of."""
        is_reranked = self.settings.rerank or self.reranker
        return {f"{self.last} + reranker": self.last} if is_reranked else {}

    @property
    def names(self) -> list[str]:
        """All, in the order of the table: base first, the last tuned one last."""
        return ["base", *self.compared, *self.tuned]

    @property
    def retrieving(self) -> list[str]:
        """All that retrieve passages: "full" gives the reader whole documents."""
        return [name for name in self.names if name != "full"]

    @property
    def untuned(self) -> list[str]:
        """Those that retrieve the same in all runs of a sweep, since no training changes them."""
        baselines = [name for name in self.settings.baselines if name != "full"]
        return ["base", *baselines, *self.retrievers, *self.expanded]

    @property
    def depth(self) -> int:
        """How many chunks a system retrieves for a question.

        Raises:
            ValueError: an unknown metric.
        """
        cutoffs = [retrieval.parse_metric(name)[1] or 0 for name in self.settings.metrics]
        return max(DEPTH, self.settings.passages, *cutoffs)

    def check(self) -> None:
        """Refuses, before any work, systems and metrics that are unknown or not at hand.

        Raises:
            ValueError: a setting, by name.
            RuntimeError: ROUGE-L is asked for, and its library is not installed.
        """
        settings = self.settings
        _ = self.depth
        if unknown := set(settings.answers) - set(answers.ANSWER_COLUMNS):
            known = ", ".join(answers.ANSWER_COLUMNS)
            raise ValueError(f"config.evaluate.answers: {min(unknown)!r} is none of {known}")
        if "rouge_l" in settings.answers:
            answers.check_rouge()
        if unknown := set(settings.baselines) - set(BASELINES):
            raise ValueError(
                f"config.evaluate.baselines: {min(unknown)!r} is none of {', '.join(BASELINES)}; "
                "name other retrievers in config.evaluate.retrievers"
            )
        self._check_names()

    def _check_names(self) -> None:
        if repeated := [name for i, name in enumerate(self.names) if name in self.names[:i]]:
            raise ValueError(
                f"config.evaluate: two systems would be called {repeated[0]!r}; leave one out or "
                "rename its folder"
            )
        ranked = set(self.names) - {"full", *self.hybrids, *self.reranked}
        for hybrid, parts in self.hybrids.items():
            if len(parts) < 2 or len(set(parts)) < len(parts) or set(parts) - ranked:
                raise ValueError(
                    f"config.evaluate.hybrids: {hybrid!r} must join two or more of "
                    f"{', '.join(sorted(ranked))} by +"
                )
