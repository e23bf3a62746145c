"""The systems that are measured: the base retriever, each stage, and what the config compares them with."""

import operator
from collections.abc import Callable, Mapping
from pathlib import Path

from ark_jax import hosts
from ark_jax.data.records import Chunk, Document, Question
from ark_jax.evaluate import answers, retrieval
from ark_jax.evaluate.systems import bm25, check_bm25, fuse
from ark_jax.log import say
from ark_jax.pipeline import Context
from ark_jax.stages.files import chunks_of, encode, generator, load_rows, pool, questions_of, save_rows
from ark_jax.text import prompts

DEPTH = 20  # retrieved chunks kept per question, or as many as the metrics look at
BASELINES = ("bm25", "full")
Lists = dict[str, list[str]]  # question -> chunk ids, best first


def trained(config) -> list[str]:
    """The base retriever, what each stage made of it, and what is merged of first and last."""
    return ["base", *(f"stage{stage}" for stage in config.train.stages), *(["merged"] if config.train.merge != 1 else [])]


def others(config) -> list[str]:
    """What they are compared with; a retriever goes by its path's last name."""
    c = config.evaluate
    return [*c.baselines, *(Path(path).name for path in c.retrievers), *c.hybrids]


def names(config) -> list[str]:
    """All, as the table has them: base first, the last stage last."""
    base, *stages = trained(config)
    return [base, *others(config), *stages]


def finding(config) -> list[str]:
    """Those that retrieve passages."""
    return [name for name in names(config) if name != "full"]


def untrained(config) -> list[str]:
    """Of those, whom no training changes: they retrieve once for all runs of a sweep."""
    own, hybrids = trained(config)[1:], config.evaluate.hybrids
    return [name for name in finding(config) if name not in (*own, *hybrids)]


def depth(config) -> int:
    c = config.evaluate
    return max(DEPTH, c.passages, *(retrieval.parse(name)[1] or 0 for name in c.metrics))


def check(config) -> None:
    """What is to be measured must be clear, and at hand, before any work is spent.

    Raises:
        ValueError: a setting that says nothing, by name.
        RuntimeError: BM25 or ROUGE-L is asked for, and not installed.
    """
    c, every = config.evaluate, names(config)
    depth(config)  # knows every metric
    if unknown := set(c.answers) - set(answers.METRICS):
        raise ValueError(f"config.evaluate.answers: {min(unknown)!r} is none of {', '.join(answers.METRICS)}")
    if "rouge_l" in c.answers:
        answers.check_rouge()
    if unknown := set(c.baselines) - set(BASELINES):
        raise ValueError(f"config.evaluate.baselines: {sorted(unknown)[0]!r} is none of {', '.join(BASELINES)}; name other "
                         "retrievers in config.evaluate.retrievers")
    if twice := [name for i, name in enumerate(every) if name in every[:i]]:
        raise ValueError(f"config.evaluate: two systems would be called {twice[0]!r}; leave one out or rename its folder")
    ranked = set(every) - {"full", *c.hybrids}
    for hybrid in c.hybrids:
        parts = hybrid.split("+")
        if len(parts) < 2 or len(set(parts)) < len(parts) or set(parts) - ranked:
            raise ValueError(f"config.evaluate.hybrids: {hybrid!r} must join two or more of {', '.join(sorted(ranked))} by +")
    if "bm25" in c.baselines:
        check_bm25()


def baselines(context: Context, folder: Path) -> dict:
    """What every held-out question retrieves by the systems that are not trained here."""
    names = untrained(context.config)
    _rank(context, names, questions_of(context, "held_out"), chunks_of(context), folder)
    return {"systems": len(names)}


def rank(context: Context, questions: list[Question], chunks: dict[str, list[Chunk]], folder: Path) -> dict[str, Lists]:
    """system -> question -> the ids of its first `depth` chunks, of "full" none."""
    k, out = depth(context.config), {"full": {q.id: [] for q in questions}}
    out |= {name: _lists(_place(context / "baselines", name)) for name in untrained(context.config)}
    out |= _rank(context, trained(context.config)[1:], questions, chunks, folder)
    for name in context.config.evaluate.hybrids:
        out[name] = {q.id: fuse([out[part][q.id] for part in name.split("+")], k) for q in questions}
    return {name: out[name] for name in names(context.config)}


def _rank(context: Context, names: list[str], questions: list[Question], chunks: dict[str, list[Chunk]],
          folder: Path) -> dict[str, Lists]:
    """The lists of `names`, each kept in `folder`: a killed run goes on."""
    k = depth(context.config)
    documents = {d for q in questions for d in q.documents}
    everything = [x for document, some in chunks.items() if document in documents for x in some]
    at = {x.id: i for i, x in enumerate(everything)}
    all_of_them, corpus = tuple(range(len(everything))), context.config.evaluate.scope == "corpus"
    scopes = [all_of_them if corpus else tuple(at[x.id] for x in pool(q, chunks)) for q in questions]
    find = lambda name: _words(questions, everything, scopes, k) if name == "bm25" \
        else _vectors(context, name, questions, everything, scopes, k)
    return {name: _kept(_place(folder, name), lambda name=name: [
        {"question": q.id, "ranked": [everything[i].id for i in found]} for q, found in zip(questions, find(name), strict=True)])
        for name in names}


def _kept(path: Path, make: Callable[[], list[dict]]) -> Lists:
    """What `make` found, from the file if it is there."""
    if not hosts.first(path.is_file):
        rows = make()

        def keep() -> None:
            save_rows(rows, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)

        hosts.first(keep)
    return _lists(path)


def _place(folder: Path, name: str) -> Path:
    return folder / f"ranked-{name}.parquet"


def _lists(path: Path) -> Lists:
    return {row["question"]: row["ranked"] for row in load_rows(path)}


def _words(questions: list[Question], chunks: list[Chunk], scopes: list[tuple[int, ...]], k: int) -> list[list[int]]:
    return hosts.first(lambda: bm25([q.question for q in questions], [x.text for x in chunks], scopes, k))


def _vectors(context: Context, name: str, questions: list[Question], chunks: list[Chunk], scopes: list[tuple[int, ...]],
             k: int) -> list[list[int]]:
    from ark_jax.search import top_k

    vectors = encode(context, name, hosts.Lookup(operator.attrgetter("text"), chunks), "document", f"embed chunks, {name}")
    queries = encode(context, name, [q.question for q in questions], "query", f"embed questions, {name}")
    asking: dict[tuple[int, ...], list[int]] = {}
    for i, scope in enumerate(scopes):
        asking.setdefault(scope, []).append(i)
    out: list[list[int]] = [[]] * len(questions)
    for scope, some in asking.items():
        found, _ = top_k(queries[some], vectors[list(scope)], k)
        for i, best in zip(some, found, strict=True):
            out[i] = [scope[j] for j in best]
    return out


def contexts(context: Context, ranked: dict[str, Lists], questions: list[Question],
             texts: Mapping[str, str]) -> tuple[Callable[[str, Question], list[str]], int]:
    """`context_of(system, question)`, the passages that the reader is given, and of how many questions the documents were cut,
    at their end, to fit it ("full")."""
    c, whole, cut = context.config.evaluate, {}, 0
    if "full" in ranked:
        documents = {d.id: d.text for d in load_rows(context / "data" / "documents.parquet", Document)}
        template, reader = prompts.load("read", context.config.prompts.read), context.config.reader
        lm = generator(context, reader.path) if reader.backend == "local" else None
        for q in questions:
            whole[q.id] = text = "\n\n".join(documents[d] for d in q.documents)
            if lm:  # how much another reader takes is for it to say
                whole[q.id] = fitting(lm, template, q.question, text, c.max_new_tokens)
            cut += whole[q.id] != text
    if cut:
        say(f"  full: the documents of {cut:,} of {len(questions):,} questions do not fit the reader and are cut")
    return lambda name, q: [whole[q.id]] if name == "full" else [texts[id] for id in ranked[name][q.id][: c.passages]], cut


def fitting(lm, template: str, question: str, text: str, max_new_tokens: int) -> str:
    """As much of the text, from its begin, as the reader's window takes beside its prompt and the answer.

    Raises:
        ValueError: there is no room for any.
    """
    from ark_jax.text.tokens import token_chunks

    def excess() -> int:
        prompt = lm.chat(prompts.fill(template, question=question, passages=text))
        return len(lm.prompt_ids([prompt])[0]) + max_new_tokens - lm.max_length + 1

    size = sum(span.tokens for span in token_chunks(text, lm.tokenizer, size=1 << 30, overlap=0))
    while (over := excess()) > 0:
        size -= over  # more than once where what is left is tokenised to more
        if size < 1:
            raise ValueError(f"prompt read and {max_new_tokens} new tokens leave no room in the {lm.max_length} that the reader "
                             "takes; shorten the prompt or set config.evaluate.max_new_tokens lower")
        text = text[: token_chunks(text, lm.tokenizer, size=size, overlap=0)[0].end]
    return text
