"""The vectors of a corpus: a model embeds its passages once, however many stages search them.

The folder `vectors` of a workdir holds those of each system, as long as its model, the passages,
and whatever else decides a bit of them stay the same. It belongs to no stage: a run without it
makes the same files.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax import __version__
from ark_jax.pipeline.fingerprints import file_digest, fingerprint, model_digest
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.corpus import searches_corpus
from ark_jax.recipes.common.models import load_retriever, retriever_path
from ark_jax.retrieval.array_files import array_rows, write_array
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.schema import setting
from ark_jax.text.token_vectors import TokenVectors, Vectors

FOLDER = "vectors"


def encode_passages(
    context: Context, system: str, passages: Sequence[str], label: str
) -> tuple[Vectors, int]:
    """Unit vectors of passages by a system's retriever, and how many passages it cuts.

    They are `[n e]`, or `TokenVectors`. If the run searches the whole corpus, they are read from
    the disk where they lie there, those of tokens in 16 bits.
    """
    retriever, settings = load_retriever(context, system), context.config.retriever
    options = {"kind": "document", "batch_tokens": settings.batch_tokens, "label": label}
    if not searches_corpus(context):
        return retriever.encode(passages, **options), retriever.truncated[label]
    path = context.workdir / FOLDER / f"{system}.npy"

    def look_up() -> tuple[str, int | None]:
        key = _key(context.config, _model(context, system), passages)
        return key, _cut_of_stored(path, key)

    key, cut = distributed.on_first_process(look_up)
    if cut is not None:
        say(f"  {label}: {len(passages):,} vectors are taken from {path}")
    else:
        cut = _encode(retriever, passages, options, path.with_suffix(".new"))
        distributed.on_first_process(lambda: _publish(path, key, cut))
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    if not (offsets := _offsets_file(path)).is_file():
        return vectors, cut
    return TokenVectors(vectors, np.load(offsets, allow_pickle=False)), cut


def _offsets_file(path: Path) -> Path:
    """Where the vectors of each text begin in the file `path` of tokens' vectors."""
    return path.with_name(f"{path.name}.offsets")


def stored_systems(workdir: Path) -> set[str]:
    """The systems of which vectors lie on the disk, whether or not they still fit."""
    return {path.stem for path in (workdir / FOLDER).glob("*.npy")}


def _encode(retriever, passages: Sequence[str], options: dict, unfinished: Path) -> int:
    """Writes the vectors for `np.load` as they come; returns how many passages are cut.

    No process holds all of them, which may be more than its memory. Where tokens have vectors, it
    also writes where those of each passage begin.
    """
    from ark_jax.models.multi_vector import MultiVectorRetriever

    shape, dtype, offsets = (len(passages), retriever.width), np.float32, None
    if isinstance(retriever, MultiVectorRetriever):
        offsets = retriever.tokenize(passages, kind="document").offsets
        shape, dtype = (int(offsets[-1]), retriever.width), np.float16
    batches = retriever.encode_batches(passages, **options)
    with contextlib.ExitStack() as stack:
        write = lambda numbers, vectors: None
        if distributed.is_first_process():
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            write = stack.enter_context(array_rows(unfinished, shape, dtype))
            if offsets is not None:
                write_array(_offsets_file(unfinished), offsets.shape, offsets.dtype, [offsets])
        for numbers, vectors in batches:
            if offsets is not None:
                rows = [range(offsets[number], offsets[number + 1]) for number in numbers]
                numbers, vectors = itertools.chain(*rows), np.concatenate(vectors)
            write(numbers, vectors)
    return retriever.truncated[options["label"]]


def _key(config, model: str, passages: Sequence[str]) -> str:
    """The fingerprint of all that decides a bit of the vectors.

    Batches decide the last bits, and settings, mesh and devices decide the batches.
    """
    import jax

    digest = hashlib.sha256()
    for passage in passages:
        data = passage.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    devices = [[device.platform, device.device_kind] for device in jax.devices()]
    return fingerprint(
        {
            "passages": digest.hexdigest(),
            "model": model,
            "retriever": {
                name: config.retriever[name] for name in config.retriever if name != "path"
            },
            "mesh": setting(config, "mesh"),
            "devices": devices,
            "version": __version__,
        }
    )


def _model(context: Context, system: str) -> str:
    """The digest of a system's model; that of a trained one is in the manifest of its stage."""
    path = retriever_path(context, system)
    if path != str(context.workdir / system / "model"):
        return model_digest(path)
    outputs = read_manifest(context / system)["outputs"]
    return fingerprint({name: x for name, x in outputs.items() if name.startswith("model/")})


def _cut_of_stored(path: Path, key: str) -> int | None:
    """How many passages were cut for the vectors that are stored under this key, if any are."""
    try:
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        fits, digest, cut = about["key"] == key, about["sha256"], int(about["cut"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not fits or not path.is_file():
        return None
    if _digest(path) != digest:
        say(f"  warning: {path} has been damaged: it is made again")
        return None
    return cut


def _digest(path: Path) -> str:
    """Of the vectors, and of where those of each text begin."""
    files = [path, _offsets_file(path)]
    return " ".join(file_digest(file) for file in files if file.is_file())


def _publish(path: Path, key: str, cut: int) -> None:
    """Replaces what is stored of the system; a kill at any moment leaves nothing false."""
    about, unfinished = path.with_suffix(".json"), path.with_suffix(".new")
    about.unlink(missing_ok=True)
    os.replace(unfinished, path)
    _offsets_file(path).unlink(missing_ok=True)
    if _offsets_file(unfinished).is_file():
        os.replace(_offsets_file(unfinished), _offsets_file(path))
    row = {"key": key, "sha256": _digest(path), "cut": cut}
    about.write_text(json.dumps(row) + "\n", encoding="utf-8")
