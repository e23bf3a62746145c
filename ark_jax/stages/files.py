"""What the stages share: their tables, what lies outside the workdir, the models in memory."""

import contextlib
import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax import bucket, hosts
from ark_jax.data.records import Chunk, Question
from ark_jax.log import primary, say
from ark_jax.pipeline import Context, file_digest
from ark_jax.text import llm, prompts


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


def chunks_of(context: Context) -> dict[str, list[Chunk]]:
    """document id -> its chunks."""
    out: dict[str, list[Chunk]] = {}
    for chunk in load_rows(context / "data" / "chunks.parquet", Chunk):
        out.setdefault(chunk.document, []).append(chunk)
    return out


def pool(question: Question, chunks: dict[str, list[Chunk]]) -> list[Chunk]:
    """The chunks a question may be answered from."""
    return [chunk for document in question.documents for chunk in chunks.get(document, ())]


@functools.cache
def identity(name_or_folder: str) -> str:
    """Changes when a model does. A hub name stands for itself; of a folder, names, sizes and first bytes count."""
    folder = bucket.local(name_or_folder)
    if not folder.is_dir():
        return name_or_folder
    seen = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix in (".json", ".safetensors", ".txt"):
            with path.open("rb") as file:
                seen.update(f"{path.name} {path.stat().st_size} ".encode() + file.read(1 << 20))
    return seen.hexdigest()


@functools.cache
def input_digest(path: str) -> str:
    """Content hash of the input file or folder."""
    root = bucket.local(path)
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.suffix in (".json", ".jsonl", ".csv")) \
        if root.is_dir() else [root]
    return hashlib.sha256("".join(p.name + file_digest(p) for p in files if p.is_file()).encode()).hexdigest()


def external(*parts: str):
    """Fingerprints by name: input, retriever, generator, replies, writer, or a prompt."""
    def prints(config) -> dict:
        out = {}
        for part in parts:
            if part == "input":
                out[part] = input_digest(config.data.path)
            elif part == "replies":
                replay = config.llm.backend == "replay" and Path(config.llm.replies).is_file()
                out[part] = file_digest(Path(config.llm.replies)) if replay else ""
            elif part == "writer":
                out[part] = identity(config.llm.path or config.generator.path) if config.llm.backend == "local" else ""
            elif part in prompts.SLOTS:
                out[f"prompt {part}"] = prompts.digest(prompts.load(part, config.prompts[part]))
            else:
                out[part] = identity(config[part].path)
        return out
    return prints


def retriever(context: Context, which: str = "base"):
    """The base retriever or a trained stage's; the last one used stays in memory."""
    from ark_jax.layout import enter_mesh
    from ark_jax.models.retriever import Retriever

    enter_mesh(context.config.mesh)
    if context.models.get("retriever", ("",))[0] != which:
        c = context.config.retriever
        path = c.path if which == "base" else str(context / which / "model")
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


def encode(context: Context, which: str, texts: list[str], kind: str, label: str = "") -> np.ndarray:
    return retriever(context, which).encode(texts, kind=kind, batch_tokens=context.config.retriever.batch_tokens, label=label)


def llm_settings(config) -> llm.Settings:
    """`config.llm`; a local model goes by what it is, not by what it is called."""
    settings = llm.Settings(**{f.name: config.llm[f.name] for f in dataclasses.fields(llm.Settings)})
    if config.llm.backend != "local":
        return settings
    return dataclasses.replace(settings, model=identity(config.llm.path or config.generator.path))


def ask(context: Context, calls: list[llm.Call], label: str, accept: llm.Accept) -> llm.Answers:
    """What the config's LLM says to `calls`; the cache is one of the workdir."""
    c, settings = context.config, llm_settings(context.config)

    def write(conversations: list[tuple[str, ...]], heard) -> None:
        lm = generator(context, c.llm.path)
        count = lambda text: len(lm.tokenizer(text, add_special_tokens=False)["input_ids"])
        said = [lm.chat(list(turns)) for turns in conversations]
        sizes = list(map(count, said))
        fits = [i for i, size in enumerate(sizes) if size + c.llm.max_tokens < lm.max_length]
        for i in sorted(set(range(len(said))) - set(fits)):
            heard(i, {"error": f"{sizes[i]:,} tokens and {c.llm.max_tokens:,} for the reply are more than the {lm.max_length:,} "
                               "that the model takes: set config.llm.max_tokens or config.data.chunk_tokens lower"})
        reply = lambda i, text: {"choices": [{"message": {"role": "assistant", "content": text}}],
                                 "usage": {"prompt_tokens": sizes[fits[i]], "completion_tokens": count(text)}}
        lm.generate([said[i] for i in fits], max_new_tokens=c.llm.max_tokens, temperature=c.llm.temperature, seed=c.seed,
                    batch_tokens=c.generator.batch_tokens, label=label, done=lambda i, text: heard(fits[i], reply(i, text)))

    replies = context.workdir / "llm" / "replies.jsonl"
    with hosts.own(replies) if c.llm.backend == "local" else contextlib.nullcontext(replies) as cache:
        answers = llm.complete(calls, settings, cache, label, accept, write)
    used = answers.usage
    told = {"requests": used.requests, "already answered": used.cached, "asked again": used.asked_again, "retries": used.retries,
            "tokens in": used.input_tokens, "tokens out": used.output_tokens}
    if used.requests:
        cost = f", ${used.cost:.2f}" if used.cost else ""
        say(f"  {label}: {', '.join(f'{n:,} {name}' for name, n in told.items() if n)}{cost}")
    return answers
