"""What the stages share: their tables, what lies outside the workdir, the models in memory."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax import bucket, hosts
from ark_jax.data import readers
from ark_jax.data.records import Chunk, Document, Question
from ark_jax.log import primary, say
from ark_jax.pipeline import Context, file_digest
from ark_jax.text import llm, prompts

WHOLE = 1 << 20  # bytes from its begin that `identity` reads of a file
PIECES, PIECE = 64, 1 << 16  # and so many pieces of so many bytes


def save_rows(rows: list, path: Path, kind=None) -> None:
    """Dataclasses or dicts to Parquet, from process 0; `kind` gives the columns when there is no row."""
    if not primary():
        return
    rows = [dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row for row in rows]
    names = list(rows[0]) if rows else [f.name for f in dataclasses.fields(kind)] if kind else []
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), path)


def load_rows(path: Path, kind=dict) -> list:
    rows = pq.read_table(path).to_pylist()
    tuples = {f.name for f in dataclasses.fields(kind) if str(f.type).startswith("tuple")} if kind is not dict else set()
    return [kind(**{k: tuple(v) if k in tuples else v for k, v in row.items()}) for row in rows]


def save_json(value, path: Path) -> None:
    """Writes from process 0."""
    if primary():
        path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def questions_of(context: Context, part: str) -> list[Question]:
    """The questions of "train" or "held_out"."""
    return load_rows(context / "data" / f"questions_{part}.parquet", Question)


class Stored(Chunk):
    """A chunk whose text is read from disk where it is asked for, each time anew."""

    def __init__(self, texts: pa.ChunkedArray, row: int, **others):
        for name, value in {"_texts": texts, "_row": row, **others}.items():
            object.__setattr__(self, name, value)  # as Chunk is frozen

    @property
    def text(self) -> str:
        return self._texts[self._row].as_py()


class Texts(Mapping[str, str]):
    """chunk id -> its text, read where it is asked for: of several processes that encode, each reads its share."""

    def __init__(self, chunks: Mapping[str, Sequence[Chunk]]):
        self._chunks = {x.id: x for some in chunks.values() for x in some}

    def __getitem__(self, id: str) -> str:
        return self._chunks[id].text

    def of(self, ids: Sequence[str]) -> hosts.Lookup[str]:
        return hosts.Lookup(self.__getitem__, ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._chunks)

    def __len__(self) -> int:
        return len(self._chunks)


def save_chunks(chunks: Sequence[Chunk], folder: Path) -> None:
    """Arrow's file format as it is, not Parquet: mapped into memory, of it only that is read which a process looks at."""
    if not primary():
        return
    fields = dataclasses.fields(Chunk)
    kinds = [pa.large_string() if f.type is str else pa.int64() for f in fields]
    table = pa.table([pa.array([getattr(x, f.name) for x in chunks], kind) for f, kind in zip(fields, kinds, strict=True)],
                     names=[f.name for f in fields])
    with pa.ipc.new_file(folder / "chunks.arrow", table.schema) as file:
        file.write_table(table)


def load_chunks(folder: Path) -> list[Chunk]:
    table = pa.ipc.open_file(pa.memory_map(str(folder / "chunks.arrow"))).read_all()
    texts = table.column("text")
    return [Stored(texts, i, **row) for i, row in enumerate(table.drop_columns("text").to_pylist())]


def chunks_of(context: Context) -> dict[str, list[Chunk]]:
    """document id -> its chunks."""
    out: dict[str, list[Chunk]] = {}
    for chunk in load_chunks(context / "data"):
        out.setdefault(chunk.document, []).append(chunk)
    return out


def pool(question: Question, chunks: dict[str, list[Chunk]]) -> list[Chunk]:
    """The chunks a question may be answered from."""
    return [chunk for document in question.documents for chunk in chunks.get(document, ())]


def pooled(questions: list[Question], chunks: dict[str, list[Chunk]]) -> list[str]:
    """The ids of all chunks that any of the questions may be answered from, each once."""
    return list(dict.fromkeys(x.id for q in questions for x in pool(q, chunks)))


def evidence_of(context: Context, questions: list[Question], chunks: dict[str, list[Chunk]]) -> dict[str, list[list[str]]]:
    """question -> its marked passages, each as the chunks of its documents that hold it."""
    from ark_jax.evaluate.retrieval import gold_chunks

    documents = {d.id: d.text for d in load_rows(context / "data" / "documents.parquet", Document)}
    return {q.id: gold_chunks(q.evidence, documents, pool(q, chunks)) for q in questions}


@functools.cache
def identity(name_or_folder: str) -> str:
    """Changes when a model does. A hub name stands for itself; of a folder, names, sizes and contents count, of large files
    the begin and pieces from all over: training moves weights of every layer."""
    folder = bucket.local(name_or_folder)
    if not (name_or_folder and folder.is_dir()):
        return name_or_folder
    seen = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in bucket.KINDS and path.is_file()):
        size = path.stat().st_size
        seen.update(f"{path.relative_to(folder).as_posix()} {size} ".encode())
        with path.open("rb") as file:
            seen.update(file.read(WHOLE))
            for piece in range(PIECES if size > WHOLE else 0):
                file.seek(WHOLE + (size - WHOLE) * piece // PIECES)
                seen.update(file.read(PIECE))
    return seen.hexdigest()


@functools.cache
def input_digest(path: str) -> str:
    """Content hash of the files that a reader of this file or folder opens."""
    root = bucket.local(path)
    names = [os.path.relpath(file, root) + file_digest(file) for file in readers.files(root) if file.is_file()]
    return hashlib.sha256("".join(names).encode()).hexdigest()


def external(*parts: str):
    """Fingerprints by name: input, openie, retriever, retrievers (those compared with), generator, or a prompt."""
    def prints(config) -> dict:
        out = {}
        for part in parts:
            if part == "input":
                out[part] = input_digest(config.data.path)
            elif part == "openie":
                out[part] = input_digest(config.graph.openie) if config.graph.openie else ""
            elif part == "retrievers":
                out |= {f"retriever {path}": identity(path) for path in config.evaluate.retrievers}
            elif part in prompts.SLOTS:
                out[f"prompt {part}"] = prompts.digest(prompts.load(part, config.prompts[part]))
            else:
                out[part] = identity(config[part].path)
        return out
    return prints


def retriever(context: Context, which: str = "base"):
    """The base retriever, a trained stage's, or one of `evaluate.retrievers` by name; the last one used stays in memory."""
    from ark_jax.layout import enter_mesh
    from ark_jax.models.retriever import Retriever

    enter_mesh(context.config.mesh)
    if context.models.get("retriever", ("",))[0] != which:
        c = context.config.retriever
        others = {Path(path).name: path for path in context.config.evaluate.retrievers}
        path = c.path if which == "base" else others.get(which) or str(context / which / "model")
        context.models["retriever"] = (which, Retriever.from_pretrained(path, compute=c.compute, attention=c.attention))
    return context.models["retriever"][1]


def generator(context: Context, path: str = ""):
    """The language model, or another one in its place; the last one used stays in memory."""
    from ark_jax.layout import enter_mesh
    from ark_jax.models.language import LanguageModel

    enter_mesh(context.config.mesh)
    c = context.config.generator
    path = path or c.path
    if context.models.get("generator", ("",))[0] != path:
        context.models.pop("generator", None)  # two may not fit
        context.models["generator"] = (path, LanguageModel.from_pretrained(path, dtype=c.dtype, compute=c.dtype,
                                                                           attention=c.attention))
    return context.models["generator"][1]


def encode(context: Context, which: str, texts: Sequence[str], kind: str, label: str = "") -> np.ndarray:
    return retriever(context, which).encode(texts, kind=kind, batch_tokens=context.config.retriever.batch_tokens, label=label)


def llm_settings(config, role: str = "llm") -> llm.Settings:
    """`config.llm`, or another role's section and for what it does not say `config.llm`; a local model goes by what it is, not by
    what it is called."""
    own = config[role]
    said = lambda name: own[name] if name in own else config.llm[name]
    settings = llm.Settings(**{f.name: said(f.name) for f in dataclasses.fields(llm.Settings)})
    if role == "reader":
        settings = dataclasses.replace(settings, max_tokens=config.evaluate.max_new_tokens)
    if own.backend != "local":
        return settings
    drawn = f" {config.seed}" if settings.temperature else ""
    return dataclasses.replace(settings, model=f"{identity(own.path or config.generator.path)} {config.generator.dtype}{drawn}")


def answering(role: str):
    """Fingerprints of who replies in a role: the model's name or, if it is local, what it is; the recording that is replayed."""
    def prints(config) -> dict:
        settings = llm_settings(config, role)
        replay = settings.backend == "replay" and Path(settings.replies).is_file()
        return {role: settings.model if settings.backend != "none" else "",
                "replies": file_digest(Path(settings.replies)) if replay else ""}
    return prints


def ask(context: Context, calls: list[llm.Call], label: str, accept: llm.Accept, role: str = "llm",
        stop: tuple[str, ...] = ()) -> llm.Answers:
    """What the LLM of a role says to `calls`; the cache is one of the workdir.

    Args:
        role: the section of the config: llm | reader | judge.
        stop: strings before which a local model's replies end.

    Raises:
        RuntimeError, ValueError: as `llm.complete`.
    """
    c, settings = context.config, llm_settings(context.config, role)
    longest = "evaluate.max_new_tokens" if role == "reader" else f"{role}.max_tokens"

    def write(conversations: list[tuple[str, ...]], heard) -> None:
        lm = generator(context, c[role].path)
        count = lambda text: len(lm.tokenizer(text, add_special_tokens=False)["input_ids"])
        said = [lm.chat(list(turns)) for turns in conversations]
        sizes = list(map(count, said))
        fits = [i for i, size in enumerate(sizes) if size + settings.max_tokens < lm.max_length]
        for i in sorted(set(range(len(said))) - set(fits)):
            heard(i, {"error": f"{sizes[i]:,} tokens and {settings.max_tokens:,} for the reply are more than the "
                               f"{lm.max_length:,} that the model takes: set config.{longest} or config.data.chunk_tokens lower"})
        reply = lambda i, text: {"choices": [{"message": {"role": "assistant", "content": text}}],
                                 "usage": {"prompt_tokens": sizes[fits[i]], "completion_tokens": count(text)}}
        lm.generate([said[i] for i in fits], max_new_tokens=settings.max_tokens, temperature=settings.temperature, seed=c.seed,
                    stop=stop, batch_tokens=c.generator.batch_tokens, label=label,
                    done=lambda i, text: heard(fits[i], reply(i, text)))

    replies = context.workdir / "llm" / "replies.jsonl"
    with hosts.own(replies) if settings.backend == "local" else contextlib.nullcontext(replies) as cache:
        try:
            answers = llm.complete(calls, settings, cache, label, accept, write)
        except (RuntimeError, ValueError) as error:  # which speaks of config.llm, where the role may have a say of its own
            error.args = (re.sub(rf"\bllm\.({'|'.join(c[role])})\b", rf"{role}.\1", str(error)),)
            raise
    used = answers.usage
    told = {"requests": used.requests, "already answered": used.cached, "asked again": used.asked_again, "retries": used.retries,
            "tokens in": used.input_tokens, "tokens out": used.output_tokens}
    if used.requests:
        cost = f", ${used.cost:.2f}" if used.cost else ""
        say(f"  {label}: {', '.join(f'{n:,} {name}' for name, n in told.items() if n)}{cost}")
    return answers
