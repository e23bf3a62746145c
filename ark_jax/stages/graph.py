"""From documents to rewritten questions: data, extract, graph, communities, rewrite."""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ark_jax.data import readers
from ark_jax.data.records import Chunk, Document, Question
from ark_jax.log import primary, say
from ark_jax.pipeline import Context
from ark_jax.stages.files import Texts, ask, chunks_of, encode, load_rows, pool, questions_of, save_chunks, save_rows
from ark_jax.text import llm, prompts


def data(context: Context, folder: Path) -> dict:
    """Documents, questions, the split by document, token chunks."""
    from ark_jax.models import hf
    from ark_jax.text.tokens import load_tokenizer, token_chunks

    c = context.config.data
    corpus = readers.load(c.path)
    for kind, rows in (("document", corpus.documents), ("question", corpus.questions)):
        if unknown := {*named_ids(c[f"held_out_{kind}s"]), *named_ids(c[f"ignored_{kind}s"])} - {row.id for row in rows}:
            raise ValueError(f"config.data: no {kind} {min(unknown)!r} in {c.path}; see `ark-jax check`")
    parts, by = _split(corpus.questions, context.config)
    for name in ("train", "held_out"):
        if not parts[name]:
            raise ValueError(f"{c.path}: the split leaves no {name.replace('_', '-')} question of {len(corpus.questions)}; "
                             "change config.data.held_out or name config.data.held_out_documents")
    ignored = named_ids(c.ignored_documents)
    documents = [d for d in corpus.documents if d.id not in ignored]
    tokenizer = load_tokenizer(str(hf.resolve(context.config.retriever.path)))
    chunks = []
    for document in documents:
        for i, span in enumerate(token_chunks(document.text, tokenizer, size=c.chunk_tokens, overlap=c.chunk_overlap)):
            text = document.text[span.start : span.end]
            if not text.strip():  # a page of blank lines holds nothing to find
                continue
            start = span.start + len(text) - len(text.lstrip())
            chunks.append(Chunk(f"{document.id}#{i:04d}", document.id, start, start + len(text.strip()), span.tokens,
                                text.strip()))
    save_rows(documents, folder / "documents.parquet", Document)
    save_chunks(chunks, folder)
    for name in ("train", "held_out"):
        save_rows(parts[name], folder / f"questions_{name}.parquet", Question)
    return {"format": corpus.format, "documents": len(documents), "chunks": len(chunks),
            "train_questions": len(parts["train"]), "held_out_questions": len(parts["held_out"]),
            "unused_questions": len(parts["ignored"]), "split_by": by,
            **({"passed_over": len(corpus.remarks)} if corpus.remarks else {})}


def named_ids(some: Iterable) -> set[str]:
    """Ids that a config lists; on the command line 7 is a number."""
    return {str(id) for id in some}


def _split(questions: list[Question], config) -> tuple[dict[str, list[Question]], str]:
    """Questions of "train", "held_out" and "ignored", and whether they were told apart by document or by question.

    Held out are named questions or documents, or a share drawn by hashing, so that a new document moves no other one. Documents
    that a question joins are drawn together. Where nearly all are joined so, questions are drawn instead.
    """
    from networkx.utils import UnionFind

    c = config.data
    ignored, named, chosen, spared = map(named_ids, (c.ignored_documents, c.held_out_documents, c.held_out_questions,
                                                     c.ignored_questions))
    parts: dict[str, list[Question]] = {"train": [], "held_out": [], "ignored": []}
    used = []
    for q in questions:
        (parts["ignored"] if ignored & set(q.documents) or q.id in spared else used).append(q)
    if chosen and named:
        raise ValueError("config.data: name held_out_questions or held_out_documents, not both")
    if chosen:
        for q in used:
            parts["held_out" if q.id in chosen else "train"].append(q)
        return parts, "question"
    if named:
        for q in used:
            own = set(q.documents)
            parts["held_out" if own <= named else "ignored" if own & named else "train"].append(q)
        return parts, "document"
    joined = UnionFind()
    for q in used:
        joined.union(*q.documents)
    key = {document: min(together) for together in joined.to_sets() for document in together}
    keys = [key[q.documents[0]] for q in used]
    by = "document"
    if used and max(collections.Counter(keys).values()) > (1 - c.held_out) * len(used):
        by, keys = "question", [q.id for q in used]
        say("  nearly all documents are joined by questions: the split is by question, so a held-out question may share passages "
            "with a training one")
    draw = lambda key: int(hashlib.sha256(f"{config.seed} {key}".encode()).hexdigest()[:8], 16) / 2**32
    for q, key in zip(used, keys, strict=True):
        parts["held_out" if draw(key) < c.held_out else "train"].append(q)
    return parts, by


def extraction(context: Context) -> list[llm.Call]:
    """A call for every chunk of the training documents."""
    chunks = chunks_of(context)
    wanted = {d for q in questions_of(context, "train") for d in q.documents}
    template = prompts.load("extract", context.config.prompts.extract)
    return [llm.Call(f"extract/{chunk.id}", "extract", (prompts.fill(template, passage=chunk.text),), {"passage": chunk.text})
            for document, some in chunks.items() if document in wanted for chunk in some]


def extract(context: Context, folder: Path) -> dict:
    """Entities and relations of every chunk of the training documents."""
    from ark_jax.graph.extract import Entity, Quarantined, Relation, parse

    calls, given = extraction(context), context.config.graph.openie
    answers = _given(context, calls) if given else ask(context, calls, "extract", _unread)
    passes = [answers, *([] if given else _glean(context, calls, answers))]
    entities, relations, lost = [], [], []
    for chunk in (call.item.removeprefix("extract/") for call in calls):
        stated: set[Entity] = set()
        known: set[tuple[str, str]] = set()
        for number, some in enumerate(passes):
            item = f"glean{number}/{chunk}" if number else f"extract/{chunk}"
            if item in some.rejected:
                lost.append(Quarantined(chunk, f"no reply: {some.rejected[item]}", ""))
            texts = [] if item in some.rejected else some.texts.get(item, [])
            for i, text in enumerate(texts):
                found, related, unread = parse(text, chunk)
                entities += [e for e in found if e not in stated]
                stated |= set(found)
                # What a later reply repeats is no second statement of the passage.
                relations += [r for r in related if (r.source, r.target) not in known]
                known |= {(r.source, r.target) for r in related}
                # A reply without any record was asked for again; to gleaning it says that nothing is missing.
                lost += unread if found or related or (not number and i == len(texts) - 1) else []
    save_rows(entities, folder / "entities.parquet", Entity)
    save_rows(relations, folder / "relations.parquet", Relation)
    save_rows(lost, folder / "quarantine.parquet", Quarantined)
    usage = sum((some.usage for some in passes[1:]), answers.usage)
    return {"calls": usage.calls, "entities": len(entities), "relations": len(relations), "quarantined": len(lost),
            "quarantine_reasons": dict(collections.Counter(x.reason.partition(":")[0] for x in lost)),
            "drifted_prompts": sum(len(some.drifted) for some in passes), "llm": dataclasses.asdict(usage)}


def _given(context: Context, calls: list[llm.Call]) -> llm.Answers:
    """Records that were extracted elsewhere, as if a model had replied with them."""
    from ark_jax.graph import openie
    from ark_jax.text.cost import Usage

    documents = load_rows(context / "data" / "documents.parquet", Document)
    found = openie.replies(Path(context.config.graph.openie), documents, chunks_of(context))
    return llm.Answers({call.item: [found[call.item.removeprefix("extract/")]] for call in calls}, {}, [], Usage())


def _unread(call: llm.Call, texts: list[str], cut: bool) -> str | None:
    from ark_jax.graph.extract import parse

    if cut:
        return "Your reply broke off. Go on with the records that are still missing, in the same form; repeat none."
    if not any(any(parse(text, "")[:2]) for text in texts):
        return "No record could be read from your reply. Write the records again, exactly in the form that was asked for."
    return None


def _glean(context: Context, calls: list[llm.Call], answers: llm.Answers) -> list[llm.Answers]:
    """Further passes over each chunk, in which the model is shown what it said and asked for what it missed."""
    c = context.config
    if not c.graph.gleanings or c.llm.backend == "none":
        return []
    more, out = prompts.load("glean", c.prompts.glean), []
    turns = {call.item: (*call.turns, "\n".join(answers.texts[call.item])) for call in calls if call.item not in answers.rejected}
    for number in range(1, c.graph.gleanings + 1):
        some = [llm.Call(f"glean{number}/{item.partition('/')[2]}", "glean", (*said, more)) for item, said in turns.items()]
        out.append(ask(context, some, f"glean {number}", lambda call, texts, cut: None))
        turns = {item: (*said, more, "\n".join(out[-1].texts[call.item]))
                 for (item, said), call in zip(turns.items(), some, strict=True) if call.item not in out[-1].rejected}
    return out


def graph(context: Context, folder: Path) -> dict:
    """The knowledge graph, with similarity edges beside the relations."""
    from ark_jax.graph.extract import Entity, Relation
    from ark_jax.graph.store import KnowledgeGraph

    made = KnowledgeGraph.from_records(load_rows(context / "extract" / "entities.parquet", Entity),
                                       load_rows(context / "extract" / "relations.parquet", Relation))
    if not len(made):
        raise ValueError("the extraction gave no entity: " + (
            "llm.backend=none reads scripts that set words apart by blanks; name a language model in config.llm.backend"
            if context.config.llm.backend == "none" and not context.config.graph.openie else
            "look at extract/quarantine.parquet for what the model replied"))
    vectors = encode(context, "base", made.texts(), "document", "embed entities")
    made = made.with_similar(vectors, context.config.graph.similarity)
    if primary():
        made.save(folder)
        np.save(folder / "vectors.npy", vectors)
    return made.summary()


def communities(context: Context, folder: Path) -> dict:
    """Seeds of every training question, their ranks, the large and the small community."""
    from ark_jax.graph.community import SeedFinder, community
    from ark_jax.graph.pagerank import COLUMNS, personalized_pagerank
    from ark_jax.graph.store import KnowledgeGraph
    from ark_jax.graph.walk import Walk
    from ark_jax.layout import enter_mesh

    enter_mesh(context.config.mesh)
    c = context.config.graph
    made = KnowledgeGraph.load(context / "graph")
    vectors = np.load(context / "graph" / "vectors.npy")
    chunks = chunks_of(context)
    nearest = lambda text: np.argsort(-(vectors @ encode(context, "base", [text], "query")[0]), kind="stable")[:5]
    finder = SeedFinder(made, Texts(chunks), nearest)
    questions = questions_of(context, "train")
    seeds = [finder.find(q.question, q.answers, [x.id for x in pool(q, chunks)]) for q in questions]
    rows, walk = [], Walk(made)
    block = COLUMNS * walk.devices  # the ranks of all questions may not fit
    for at in range(0, len(questions), block):
        some = seeds[at : at + block]
        ranks = personalized_pagerank(walk, [s.nodes for s in some], teleport=c.teleport, tolerance=c.tolerance,
                                      dtype="float64")
        for question, seed, rank in zip(questions[at : at + block], some, ranks, strict=True):
            for size in ("large", "small"):
                at_least, at_most = c[size]
                nodes = community(rank, at_least=at_least, at_most=at_most, floor=c.floor)
                rows.append({"question": question.id, "size": size, "rule": seed.rule, "seeds": [int(i) for i in seed.nodes],
                             "nodes": nodes, "ranks": rank[nodes].tolist()})
    save_rows(rows, folder / "communities.parquet")
    rules = {f"seeds_by_{rule}": sum(s.rule == rule for s in seeds)
             for rule in ("exact", "overlap", "mention", "question", "embedding")}
    return {"questions": len(questions), **rules}


def rewriting(context: Context, communities: list[dict] | None = None) -> list[llm.Call]:
    """A call for every community: those of the workdir, or others, of no entities."""
    from ark_jax.graph.store import KnowledgeGraph

    questions = {q.id: q for q in questions_of(context, "train")}
    template, count = prompts.load("rewrite", context.config.prompts.rewrite), context.config.graph.rewrites
    made = KnowledgeGraph.load(context / "graph") if communities is None else None
    calls = []
    for row in load_rows(context / "communities" / "communities.parquet") if communities is None else communities:
        q = questions[row["question"]]
        entities = "\n".join(f"- {made.names[i]} ({made.types[i]}): {(made.descriptions[i] or [''])[0]}" for i in row["nodes"])
        filled = prompts.fill(template, question=q.question, answer=q.answers[0], entities=entities, count=count)
        calls.append(llm.Call(f"rewrite/{q.id}/{row['size']}", "rewrite", (filled,), {
            "question": q.question, "names": [made.names[i] for i in row["nodes"]], "count": count}))
    return calls


def rewrite(context: Context, folder: Path) -> dict:
    """Ten questions through the large and ten through the small community of each question."""
    from ark_jax.text.rewrite import complaint, parse, plain

    questions, count = {q.id: q for q in questions_of(context, "train")}, context.config.graph.rewrites
    calls = rewriting(context)
    of = lambda call: questions[call.item.removeprefix("rewrite/").rsplit("/", 1)[0]]
    answers = ask(context, calls, "rewrite", lambda call, texts, cut: complaint(parse(*texts), of(call), count))
    rows, quarantine, leaking, without = [], [], 0, 0
    for call in calls:
        texts = answers.texts[call.item]
        found = parse(*texts)
        problem = answers.rejected.get(call.item) or complaint(found, of(call), count)
        if problem:
            quarantine.append({"item": call.item, "reason": problem, "text": "\n".join(texts)})
        some = [text for text in found if plain(text) != plain(of(call).question)][:count]
        leaking += sum(any(a.lower() in text.lower() for a in of(call).answers) for text in some)
        without += not some
        size = call.item.rsplit("/", 1)[1]
        # A question must not go without: what cannot be read is replaced by the original question.
        rows += [{"question": of(call).id, "size": size, "text": text} for text in some or [of(call).question]]
    save_rows(rows, folder / "rewritten.parquet")
    save_rows(quarantine, folder / "quarantine.parquet")
    return {"calls": len(calls), "rewritten": len(rows), "quarantined": len(quarantine), "holding_the_answer": leaking,
            "not_rewritten": without, "drifted_prompts": len(answers.drifted), "llm": dataclasses.asdict(answers.usage)}
