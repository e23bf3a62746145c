"""An index of a corpus, searched by the vectors of a retriever, by BM25, or by both."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ark_jax import __version__
from ark_jax.data.problems import Reading
from ark_jax.data.spool import StoredChunks
from ark_jax.index import folder as folders
from ark_jax.index.folder import Manifest
from ark_jax.index.metadata import DOCUMENTS_FILE, Metadata
from ark_jax.index.passages import Hit, Hits
from ark_jax.index.rows import Corpus
from ark_jax.pipeline import fingerprints
from ark_jax.retrieval.bm25_index import BM25Index, open_bm25
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.retrieval.fusion import Fusion, retriever_fusion
from ark_jax.retrieval.searcher import (
    Dense,
    Embed,
    Known,
    Ranking,
    Reranked,
    Scopes,
    named_searcher,
)
from ark_jax.retrieval.vector_files import UNREADABLE, check_vectors, open_vectors, read_vectors
from ark_jax.runtime import storage
from ark_jax.runtime.shown import one_line
from ark_jax.text.token_rows import check_list
from ark_jax.text.token_vectors import TokenVectors, Vectors

if TYPE_CHECKING:
    from ark_jax.models.numpy_retriever import NumpyRetriever
    from ark_jax.models.pairs import CrossEncoder
    from ark_jax.models.retriever import Retriever
    from ark_jax.retrieval.dense import Keys

BY = ("hybrid", "dense", "bm25")
RERANKED = 50  # chunks of a question that a reranker orders, or as many as are asked for
_TRIES = 5  # to open an index while another program replaces it
# Unit vectors of questions and k -> positions of the nearest chunks and their scores, [q k] each.
Nearest = Callable[[Vectors, int], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class _Database:
    """A searcher that asks a vector database for the nearest chunks."""

    nearest: Nearest
    embed: Embed

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        """The k nearest chunks of each question; ValueError for scopes, which a database lacks."""
        if scopes is not None:
            raise ValueError("where: a database is searched by its own filters; leave out --from")
        return list(map(Ranking, *self.nearest(self.embed(questions), k)))


@dataclasses.dataclass
class Index:
    """Chunks of a corpus on disk, mapped into memory, with their vectors and BM25.

    An open index keeps its files, even if another program replaces the index.
    """

    folder: Path
    manifest: Manifest
    chunks: StoredChunks
    vectors: Vectors  # unit vectors [n e], or one for each token, which may be `retrieval.codes`
    words: BM25Index
    metadata: Metadata
    model: str  # folder or hub name of the retriever
    loaded: "Retriever | None" = None
    nearest: Nearest | None = None  # a database that has the vectors and is searched instead
    few: bool = False  # whether few texts will be embedded: by numpy where the model allows it
    engine: str = ""  # what computes vectors, where it is not the index's
    __repr__ = one_line("folder", "len", "model")

    @classmethod
    def build(
        cls,
        folder: str | Path,
        model: str | Path,
        corpus: Corpus,
        *,
        rules: ChunkRules | None = None,
        bits: int = 0,
        pool: int = 1,
        fusion: Fusion | None = None,
        reranker: str | Path = "",
        reading: Reading | None = None,
        engine: str = "jax",
    ) -> "Index":
        """Makes an index, or updates an earlier one to this corpus.

        Documents that have not changed are not cut again, and passages that the earlier index has
        are not embedded again. If nothing has changed, nothing is done. After a kill, call it
        again; finished blocks of 2,048 passages are kept.

        Args:
            folder: of the index; new, empty, or an earlier index.
            model: folder or hub name of the retriever. If it keeps a vector for each token, the
                index takes more space, and questions are compared by `late.maxsim`.
            corpus: a file or folder that `data.readers` reads, several in a list, a dataframe, or
                rows: dicts with "text" and, if known, "id" and "title", or `Document`.
            rules: how documents are cut; None: `ChunkRules()`. Chunks of the corpus stay.
            bits: of a stored component: 16 or 32 (float16, float32) or, if each token has a vector,
                1, 2, 4 or 8 too (`retrieval.codes`). 0: 32, or 2 of a token's. An index of 32 bits
                is converted.
            pool: of so many tokens' vectors of a passage one stays, see `late.pool`.
            fusion: how rankings are joined by a search; None: as the model's folder
                says, see `retriever_fusion`.
            reranker: folder or hub name of a pair scorer that orders what a search finds, see
                `CrossEncoder`; empty: none.
            reading: how the files of the corpus are read; None: as their content shows.
            engine: what computes vectors: "jax", or one of `onnx_retriever.FILES`, for which the
                model's folder has a file of `integrations.onnx.save_onnx`.

        Raises:
            BadInput: the corpus has problems; it lists all of them.
            ValueError: no document has text, `folder` holds other things or is in a bucket,
                `bits` or `pool` does not fit the model, or `reranker` scores no pairs.
            RuntimeError: another program is changing the index, or the engine is not installed.
            OSError: the index cannot be written. It is then as it was.
        """
        from ark_jax.index import build

        name = absolute_model(model)
        scorer = absolute_model(reranker) if reranker else ""
        fusion = fusion or retriever_fusion(name)
        rules = rules or ChunkRules()
        settings = build.Settings(name, rules, bits, fusion, scorer, engine, pool=pool)
        folder = storage.local_path(folder)
        build.build(folder, settings, corpus, reading or Reading())
        return cls.open(folder)

    @classmethod
    def open(
        cls, folder: str | Path, *, model: str | Path = "", few: bool = False, engine: str = ""
    ) -> "Index":
        """Opens an index. The model is loaded by the first search that needs it.

        Args:
            model: where the retriever is now, if it was moved.
            few: texts will be few: numpy embeds them, where it can, since jax starts slowly.
            engine: as in `build`; empty: what computed the index's vectors.

        Raises:
            FileNotFoundError: the folder holds no index.
            ValueError: a file of the index is missing or damaged, or it is in a bucket.
        """
        folder = storage.local_path(folder)
        for _ in range(_TRIES):
            manifest = folders.manifest_of(folder)
            reason = folders.damage_of(manifest, folder, verify=False)
            if not reason:
                try:
                    parts = _open_parts(folder / manifest.folder, manifest)
                    name = absolute_model(model or manifest.model)
                    return cls(folder, manifest, *parts, name, few=few, engine=engine)
                except FileNotFoundError:
                    pass  # replaced by another program since the manifest was read
        raise ValueError(
            f"{folder / manifest.folder}: {reason or 'files go away'}; {folders.AGAIN}"
        )

    def __len__(self) -> int:
        """The number of chunks."""
        return len(self.chunks)

    @property
    def retriever(self) -> "Retriever":
        """The model that embeds passages and questions, loaded on first use.

        Raises:
            FileNotFoundError: it is not where it was.
            ValueError: it is another model than the one that the index was made with.
        """
        if self.loaded is None:
            self._describe_model()
            self.loaded = self._model
        return self.loaded

    def embed(self, texts: Sequence[str], kind: str) -> Vectors:
        """The vectors of texts of a kind, "query" or "document"; raises as `retriever`."""
        return self._encoder.encode(texts, kind=kind)

    @functools.cached_property
    def _encoder(self) -> "Retriever | NumpyRetriever":
        """The retriever, or numpy in its place if texts are few and it can."""
        from ark_jax.models.numpy_retriever import NumpyRetriever

        described = self._describe_model() if self.few and self.loaded is None else None
        return NumpyRetriever(described) if described else self.retriever

    @functools.cached_property
    def _model(self) -> "Retriever":
        """The retriever, which may be another than the index was made with."""
        from ark_jax.models.multi_vector import open_retriever  # starts jax

        try:
            return open_retriever(self.model, engine=self.engine or self.manifest.engine)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"the model of the index {self.folder} is missing ({error}); give its place with "
                "--model=FOLDER, or search --by=bm25, which needs none"
            ) from None

    def _describe_model(self) -> dict | None:
        """`numpy_retriever.describe` of the model. It is opened if it has not been seen before.

        Raises:
            FileNotFoundError, ValueError: as `retriever`.
        """
        from ark_jax.models.numpy_retriever import KINDS, describe

        engine = self.engine or self.manifest.engine
        known = [fingerprints.read_model_digest(self.model), engine, __version__]
        compute = lambda: (*map(self._model.digest, KINDS), describe(self._model))
        asked_by, digest, described = fingerprints.remembered(
            f"described {self.model} {engine}", known, compute
        )
        is_same = digest == self.manifest.made_with["model"]
        if not is_same and engine != self.manifest.engine:
            raise ValueError(
                f"{self.folder}: made with --engine={self.manifest.engine}, and --engine={engine} "
                "gives other vectors: leave it out, or run `ark-jax index` again with it"
            )
        if not is_same or self.manifest.asked_by not in ("", asked_by):
            difference = (
                "embeds questions otherwise than when" if is_same else "is another model than"
            )
            raise ValueError(
                f"{self.model} {difference} the index {self.folder} was made with: run "
                "`ark-jax index` again, or give the place of the right one with --model=FOLDER"
            )
        return described

    @functools.cached_property
    def reranker(self) -> "CrossEncoder | None":
        """The model that orders what a search finds, loaded on first use; None without one.

        Raises:
            FileNotFoundError: it is not where it was.
            ValueError: it scores no pairs.
        """
        if not self.manifest.reranker:
            return None
        from ark_jax.models.pairs import CrossEncoder  # starts jax

        try:
            return CrossEncoder.from_pretrained(self.manifest.reranker)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"the reranker of the index {self.folder} is missing ({error}); search with "
                "--no-rerank, or give its place by `ark-jax index` with --reranker=FOLDER"
            ) from None

    def add(self, corpus: Corpus) -> "Index":
        """Adds documents, and replaces those that have the same id; returns the new index.

        Raises:
            BadInput, ValueError, RuntimeError, OSError: as `build`.
        """
        from ark_jax.index import build

        build.add(self.folder, self.model, self.retriever, corpus)
        return dataclasses.replace(self.open(self.folder, model=self.model), loaded=self.loaded)

    def search(
        self,
        questions: Sequence[str],
        *,
        k: int = 10,
        by: str = "hybrid",
        vectors: Vectors | None = None,
        rerank: bool = True,
        where: str = "",
    ) -> list[Hits]:
        """The k best chunks of each question, best first: a list of `Hit` for each.

        Args:
            by: "dense" ranks by cosines, of tokens by `late.maxsim`, "bm25" by words, "hybrid" by
                both, as `manifest.fusion` says. BM25 leaves out chunks without a word of the
                question.
            vectors: of the questions, if they are known; None: the retriever embeds them.
            rerank: whether the index's reranker, if it has one, orders the `RERANKED` best.
            where: a filter on the metadata of documents, such as "year >= 2020 and lang = 'en'";
                chunks of others do not exist for this search. See `index.metadata`.

        Raises:
            ValueError: `by` is another word, k is below 1, the filter is wrong, or the model is not
                that of the index.
        """
        check_list("questions", questions)
        if odd := [x for x in questions if not isinstance(x, str)]:
            raise ValueError(f"questions: {odd[0]!r} is no string; give strings")
        if by not in BY:
            raise ValueError(f"by={by!r}: must be {', '.join(BY)}")
        if k < 1:
            raise ValueError(f"k={k}: must be at least 1")
        if vectors is None:
            embed = lambda texts: self.embed(texts, "query")
        else:
            embed = lambda texts: vectors
        vectors_or_keys = self.vectors if by == "bm25" or self.few else self._keys
        dense = _Database(self.nearest, embed) if self.nearest else Dense(vectors_or_keys, embed)
        reranker = self.reranker if rerank else None
        depth = max(k, RERANKED) if reranker else k
        searcher = named_searcher(by, self.words, dense, self.manifest.fusion, depth)
        scopes = None if not where else [self.metadata.passing(where)] * len(questions)
        if scopes and not len(scopes[0]):
            found = [Ranking((), ())] * len(questions)
        else:
            found = searcher.search(list(questions), depth, scopes)
        if reranker:
            found = [Ranking.from_pairs(ranking.pairs()) for ranking in found]
            texts = {i: self.chunks[i].passage for ranking in found for i in ranking.ids}
            found = Reranked(Known(found), texts, reranker.score).search(list(questions), depth)
        results = [Hits(self._hit(*pair) for pair in ranking.pairs()[:k]) for ranking in found]
        for question, hits in zip(questions, results, strict=True):
            hits.question = question
        return results

    @functools.cached_property
    def _keys(self) -> "Vectors | Keys":
        """The vectors, which stay on the accelerator for the next search; tokens' do not."""
        from ark_jax.retrieval.dense import Keys  # starts jax

        return self.vectors if isinstance(self.vectors, TokenVectors) else Keys(self.vectors)

    def _hit(self, position: int, score: float) -> Hit:
        chunk = self.chunks[position]
        place = chunk.document, chunk.title, chunk.start, chunk.end, chunk.id
        return Hit(score, *place, chunk.text, self.metadata.at(position))

    def with_model(self, model: str | Path) -> "Index":
        """The same chunks with the vectors of another model, for a comparison.

        They are kept in the folder of the index, so that a model embeds each passage once.

        Raises:
            FileNotFoundError, ValueError: the model cannot be opened.
            OSError: the folder cannot be written.
        """
        from ark_jax.index import build, tables
        from ark_jax.models.multi_vector import MultiVectorRetriever, open_retriever

        retriever = open_retriever(absolute_model(model))
        bits, pool = 0, 1  # as by default, unless the index has the same kind of vectors
        if isinstance(self.vectors, TokenVectors) == isinstance(retriever, MultiVectorRetriever):
            bits = build.stored_bits(self.manifest.made_with)
            pool = self.manifest.made_with.get("pool", 1)
        made_with = build.vectors_made_with(retriever, bits, pool)
        place = self.folder / folders.COMPARED / fingerprints.fingerprint(made_with)[:16]
        vectors = open_vectors(
            place,
            tables.chunk_keys(self.chunks),
            build.embedder(retriever, self.chunks, made_with),
            made_with,
            "embed chunks",
        )
        manifest = dataclasses.replace(self.manifest, made_with=made_with)
        path = absolute_model(model)
        return dataclasses.replace(
            self, manifest=manifest, vectors=vectors, model=path, loaded=retriever, nearest=None
        )


def _open_parts(
    place: Path, manifest: Manifest
) -> tuple[StoredChunks, Vectors, BM25Index, Metadata]:
    """The files of an index, mapped into memory.

    Their structure is checked, so that no search reads outside of them; see `folders.damage_of`.

    Raises:
        FileNotFoundError: one is missing.
        ValueError: one is damaged.
    """
    try:
        chunks = StoredChunks(place)
        if len(chunks) != manifest.chunks:
            raise ValueError(f"{len(chunks):,} chunks, and its manifest says {manifest.chunks:,}")
        vectors = read_vectors(place / folders.VECTORS)
        check_vectors(vectors, len(chunks), manifest.made_with)
        words = open_bm25(place / folders.WORDS, len(chunks), manifest.tokenizer)
        path = place / DOCUMENTS_FILE
        return chunks, vectors, words, Metadata(path, manifest.documents, len(chunks))
    except FileNotFoundError:
        raise
    except (*UNREADABLE, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{place} is damaged ({reason}); {folders.AGAIN}") from None


def absolute_model(model: str | Path) -> str:
    """The absolute path of a folder; a hub name or a bucket address stays as it is."""
    name = str(model)
    return name if storage.is_hub_name(name) else storage.absolute(name)
