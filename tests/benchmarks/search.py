"""Near pairs, exact top-k, late interaction and BM25 against their peers.

    python tests/benchmarks/search.py [similar] [topk] [late] [codes] [recall] [words] [few]

The vectors are random and of unit length; for `late` there are as many as MiniLM makes of story
sections and questions of FairytaleQA. `few` asks questions of KEYS vectors that MiniLM makes of the
sentences of stories; what is lacking are these with noise of six tenths of their length. `codes`
searches KEYS texts of 180 random codes of 2 bits, and prints its memory; `recall` says how many of
the ten best of KEYS story passages, encoded by MiniLM, a search of codes finds.
`similar` runs with two spectra. The first is flat, the
worst case for a screen in a subspace. The second is that of sentence embeddings such as MiniLM's: a
quarter of the directions holds three quarters of the squared length. The OpenBLAS of numpy and
faiss chooses its kernels when it is loaded. On a machine with AVX-512,
OPENBLAS_CORETYPE=Haswell selects others; elsewhere Haswell or Zen is the default. torch runs as
shipped and with
`set_float32_matmul_precision("medium")`. NODES, QUERIES, KEYS, WIDTH and ROUNDS make it smaller.
"""

import functools
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from timing import installed, machine, product_rate, race, report

from ark_jax import layout
from ark_jax.retrieval import dense
from ark_jax.retrieval.dense import near_pairs, top_k
from ark_jax.retrieval.late import maxsim
from ark_jax.text.token_vectors import TokenVectors, join

NODES, QUERIES, KEYS, WIDTH, ROUNDS = (
    int(os.environ.get(name, value))
    for name, value in (
        ("NODES", 20_000),
        ("QUERIES", 2_000),
        ("KEYS", 100_000),
        ("WIDTH", 1_024),
        ("ROUNDS", 3),
    )
)
THRESHOLD, K = 0.8, 20
SECTIONS, ASKED = 560, int(os.environ.get("ASKED", "500"))  # texts and questions of `late`
PRECISIONS = {"default": "highest", "tuned": "medium"}


def unit(rng: np.random.Generator, n: int, decay: float = 0.0) -> np.ndarray:
    x = (
        rng.standard_normal((n, WIDTH), dtype=np.float32)
        * np.arange(1, WIDTH + 1, dtype=np.float32) ** -decay
    )
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def nodes(decay: float) -> np.ndarray:
    """Half of the vectors are alone, half lie about centres, ten to a centre.

    Thousands of pairs lie above the threshold and as many below.
    """
    rng = np.random.default_rng(0)
    near = unit(rng, NODES // 20, decay)[rng.integers(0, NODES // 20, NODES // 2)] + 0.5 * unit(
        rng, NODES // 2, decay
    )
    x = np.concatenate([unit(rng, NODES - NODES // 2, decay), near])[rng.permutation(NODES)]
    # In coordinates of no meaning, as a model's are.
    x = x @ np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def under(precision: str, run):
    """`run` with torch set so; the setting is put before each run, since contenders take turns."""
    import torch

    def go():
        torch.set_float32_matmul_precision(PRECISIONS[precision])
        return run()

    return go


def grown(run) -> float:
    """MiB by which the process's memory grows while it runs."""
    now = lambda: (
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    )
    before, highest, done = now(), [0.0], threading.Event()

    def watch():
        while not done.wait(0.002):
            highest[0] = max(highest[0], now())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return highest[0] - before


def numpy_near(x: np.ndarray, block: int = 2048) -> np.ndarray:
    """The upper triangle in blocks."""
    out = []
    for i in range(0, len(x), block):
        for j in range(i, len(x), block):
            rows, columns = np.nonzero(x[i : i + block] @ x[j : j + block].T >= THRESHOLD)
            out.append(np.stack([rows + i, columns + j], 1)[rows + i < columns + j])
    return np.concatenate(out)


def torch_near(x: np.ndarray, block: int = 2048) -> np.ndarray:
    import torch

    x, out = torch.from_numpy(x), []
    for i in range(0, len(x), block):
        for j in range(i, len(x), block):
            pairs = (x[i : i + block] @ x[j : j + block].T >= THRESHOLD).nonzero() + torch.tensor(
                [i, j]
            )
            out.append(pairs[pairs[:, 0] < pairs[:, 1]])
    return torch.cat(out).numpy()


def faiss_near(index, x: np.ndarray) -> np.ndarray:
    limits, _, columns = index.range_search(x, THRESHOLD)
    rows = np.repeat(np.arange(len(x)), np.diff(limits.astype(int)))
    return np.stack([rows, columns], 1)[rows < columns]


def same_pairs(name: str, ours: np.ndarray, theirs: np.ndarray, x: np.ndarray) -> None:
    """Pairs that only one of both has must lie within float32's rounding of the threshold."""
    other = (
        np.array(sorted(set(map(tuple, ours.tolist())) ^ set(map(tuple, theirs.tolist()))))
        .reshape(-1, 2)
        .astype(int)
    )
    away = np.abs(np.vecdot(*(x[other[:, side]].astype(np.float64) for side in (0, 1))) - THRESHOLD)
    if len(other) and away.max() > 1e-6:
        raise SystemExit(f"{name} has other pairs: {other[away > 1e-6][:3].tolist()}")


def similar() -> None:
    import faiss

    products = NODES * (NODES + 1) * WIDTH
    for spectrum, decay in (("alike in all directions", 0.0), ("the spectrum of embeddings", 0.4)):
        x = nodes(decay)
        index = faiss.IndexFlatIP(WIDTH)
        index.add(x)
        peers = {
            "numpy, upper triangle": functools.partial(numpy_near, x),
            **{
                f"torch, upper triangle, {p}": under(p, functools.partial(torch_near, x))
                for p in PRECISIONS
            },
        }
        ours = {
            "ark_jax": functools.partial(near_pairs, x, THRESHOLD),
            "ark_jax, float32 screen": functools.partial(
                near_pairs, x, THRESHOLD, screen="float32"
            ),
        }
        # The first run of all: it compiles, and later ones find memory that the process has kept.
        print(
            f"\nmemory beside the vectors ({x.nbytes / 2**20:.0f} MiB), "
            f"at most: {grown(ours['ark_jax']):.0f} MiB"
        )
        pairs, _ = near_pairs(x, THRESHOLD)
        for name, run in {
            **peers,
            "faiss, range_search": lambda index=index, x=x: faiss_near(index, x),
        }.items():
            start = time.perf_counter()
            same_pairs(name, pairs, run(), x)
            # Slower by far, so once is enough.
            if name.startswith("faiss"):
                milliseconds = (time.perf_counter() - start) * 1e3
                print(f"{name}: {milliseconds:,.0f} ms, once, with whatever else ran")
        report(
            f"cosine >= {THRESHOLD} among {NODES:,} x {WIDTH}, {spectrum}: {len(pairs):,} pairs, "
            "the same for all; operations of the full upper triangle",
            "GFLOP",
            products / 1e9,
            race({**ours, **peers}, rounds=ROUNDS),
            least=products / product_rate(2048, WIDTH, 2048),
        )


def torch_top(queries: np.ndarray, keys: np.ndarray, block: int = 1000) -> np.ndarray:
    import torch

    queries, keys = map(torch.from_numpy, (queries, keys))
    return torch.cat(
        [
            (queries[start : start + block] @ keys.T).topk(K).indices
            for start in range(0, len(queries), block)
        ]
    ).numpy()


def same_keys(
    name: str,
    ours: np.ndarray,
    scores: np.ndarray,
    theirs: np.ndarray,
    queries: np.ndarray,
    keys: np.ndarray,
) -> None:
    """The same inner products at every rank, to float32's rounding."""
    for query, mine, rival, values in zip(queries, ours, theirs, scores, strict=True):
        if (mine != rival).any():
            away = np.abs(keys[rival].astype(np.float64) @ query.astype(np.float64) - values).max()
            if away > 1e-6:
                raise SystemExit(
                    f"{name} has other keys, by {away:.1e}: {rival.tolist()}, not {mine.tolist()}"
                )


def topk() -> None:
    import faiss

    rng = np.random.default_rng(1)
    queries, keys = unit(rng, QUERIES), unit(rng, KEYS)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(keys)
    ours = {"ark_jax": functools.partial(top_k, queries, keys, K)}
    if os.environ.get("BFLOAT16"):
        ours["ark_jax, bfloat16 screen"] = functools.partial(
            top_k, queries, keys, K, screen="bfloat16"
        )
    peers = {
        "faiss, IndexFlatIP": lambda: index.search(queries, K)[1],
        **{
            f"torch, matmul and topk, {p}": under(p, functools.partial(torch_top, queries, keys))
            for p in PRECISIONS
        },
    }
    print(
        f"\nmemory beside the vectors ({keys.nbytes / 2**20:.0f} MiB), "
        f"at most: {grown(ours['ark_jax']):.0f} MiB"
    )
    nearest, scores = top_k(queries, keys, K)
    for name, run in peers.items():
        same_keys(name, nearest, scores, run(), queries, keys)
    for name, run in ours.items():
        if (run()[0] != nearest).any():
            raise SystemExit(f"{name} has other keys")
    report(
        f"{K} best of {KEYS:,} x {WIDTH} for {QUERIES:,} queries, the same for all",
        "GFLOP",
        2 * QUERIES * KEYS * WIDTH / 1e9,
        race({**ours, **peers}, rounds=ROUNDS),
        least=2 * QUERIES * KEYS * WIDTH / product_rate(1024, WIDTH, 32_768),
    )


def of_tokens(texts: list[str], kind: str) -> TokenVectors:
    """As many random vectors as MiniLM makes of texts."""
    from models import minilm

    lengths = [len(ids) for ids in minilm()[0].tokenize(texts, kind=kind)]
    rng = np.random.default_rng(2)
    x = rng.standard_normal((sum(lengths), 384), dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return TokenVectors(x, np.cumsum([0, *lengths]))


def late() -> None:
    import torch
    from models import stories
    from sentence_transformers.util import maxsim as theirs

    sections, questions = stories()
    texts = of_tokens(sections[:SECTIONS], "document")
    halves = TokenVectors(texts.values.astype(np.float16), texts.offsets)
    asked = of_tokens(questions[:ASKED], "query")
    rows = [torch.from_numpy(text) for text in texts]
    for queries in (asked, asked[:1]):
        asking = [torch.from_numpy(query) for query in queries]
        sizes = {"as shipped": None, "300,000": 300_000, "a million": 10**6, "ten million": 10**7}
        runs = {
            "ark_jax": functools.partial(maxsim, queries, texts),
            "ark_jax, 16 bits": functools.partial(maxsim, queries, halves),
            **{
                f"sentence-transformers, {name}": functools.partial(
                    theirs, asking, rows, chunk_elements=size, length_normalize=True
                )
                for name, size in sizes.items()
            },
        }
        expected = runs["ark_jax"]()
        for name, run in runs.items():
            away = np.abs(np.asarray(run()) - expected).max()
            if away > 1e-3:
                raise SystemExit(f"{name} has other scores, by {away:.1e}")
        tokens = len(queries.values), len(texts.values)
        report(
            f"MaxSim of {len(queries):,} questions ({tokens[0]:,} tokens) with {len(texts):,} "
            f"sections ({tokens[1]:,} tokens)",
            "questions",
            len(queries),
            race(runs, rounds=ROUNDS),
            least=2 * 384 * tokens[0] * tokens[1] / product_rate(1024, 384, 8192),
            apart=["ark_jax, 16 bits"],
        )


def codes() -> None:
    """A search of tokens in 2 bits a component, mapped from a file, one question at a time."""
    from ark_jax.retrieval import late
    from ark_jax.retrieval.array_files import write_array
    from ark_jax.retrieval.codes import DTYPE, columns

    rng, tokens, width = np.random.default_rng(0), 180, 384
    shape = (KEYS * tokens, columns(width, 2))
    draw = lambda start: rng.integers(
        0, 1 << 32, (min(1 << 18, shape[0] - start), shape[1]), np.uint32
    )
    asked = rng.standard_normal((15, width), np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    queries = TokenVectors(asked, np.array([0, len(asked)]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes.npy"
        parts = map(draw, range(0, shape[0], 1 << 18))
        write_array(path, shape, DTYPE, parts, by_columns=True)
        start = time.perf_counter()
        texts = TokenVectors(np.load(path, mmap_mode="r"), np.arange(KEYS + 1) * tokens)
        opened = time.perf_counter() - start
        print(
            f"\n{KEYS:,} texts, {path.stat().st_size / KEYS:,.0f} bytes each, open {opened:.4f} s"
        )
        for number in range(ROUNDS + 1):
            clocks = time.perf_counter(), time.process_time()
            late.nearest(queries, texts, 10)
            wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
            status = Path("/proc/self/status").read_text().split()
            kept = [int(status[status.index(f"{x}:") + 1]) >> 10 for x in ("VmRSS", "RssAnon")]
            print(
                f"  question {number}: {wall:.3f} s, {cpu:.3f} CPU s, {kept} MiB in all, anonymous"
            )


def recall() -> None:
    """The ten best of all passages in 2 bits, found by all signs, and where first signs choose."""
    from textwrap import wrap

    from models import stories

    from ark_jax import MultiVectorRetriever
    from ark_jax.demo.models import demo_models
    from ark_jax.retrieval import late, screen
    from ark_jax.retrieval.codes import pack

    sections, questions = stories()
    passages = [text for section in sections for text in wrap(section, 250)][:KEYS]
    encode = MultiVectorRetriever.from_pretrained(demo_models()["retriever"]).encode
    queries, parts = encode(questions[::50], kind="query"), []
    for first in range(0, len(passages), 1024):
        vectors = encode(passages[first : first + 1024], kind="document")
        parts.append(TokenVectors(pack(vectors.values, 2), vectors.offsets))
    texts = join(parts)
    best = np.argsort(-maxsim(queries, texts), axis=1, kind="stable")[:, :10]
    print(f"\n{len(texts):,} passages, {len(queries):,} questions, recall of the ten best")
    for chosen in (len(texts), 4096, 1024, 512):
        screen.WHOLE = chosen
        found = late.nearest(queries, texts, 10)[0]
        pairs = zip(found, best, strict=True)
        part = np.mean([len(np.intersect1d(*pair)) / 10 for pair in pairs])
        print(
            f"  first signs choose {chosen:6,}, if of three times as many: {part:.4f}", flush=True
        )


def few() -> None:
    """One question, and 16, of many vectors: by signs, exactly, and peers at their recall."""
    import importlib.util

    from models import stories

    from ark_jax import Retriever
    from ark_jax.demo.models import demo_models

    sections, questions = stories()
    lines = list(dict.fromkeys(x for section in sections for x in section.split(". ")))
    embed = Retriever.from_pretrained(demo_models()["retriever"]).encode
    rng = np.random.default_rng(4)
    queries = embed(questions[::97], kind="query")
    real = embed(lines[: KEYS // 4], kind="document")
    keys = np.resize(real, (KEYS, real.shape[1]))
    noise = rng.standard_normal((max(KEYS - len(real), 0), real.shape[1]), np.float32)
    keys[len(real) :] += noise * np.float32(0.6 / real.shape[1] ** 0.5)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    kept, (wanted, _) = dense.Keys(keys), top_k(queries, keys, 10)
    runs = {
        "ark_jax": lambda asked: top_k(asked, kept, 10)[0],
        "ark_jax, exact": lambda asked: top_k(asked, keys, 10)[0],
    }
    if importlib.util.find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(os.cpu_count() or 1)
        flat, lists = faiss.IndexFlatIP(real.shape[1]), int(KEYS**0.5)
        inverted = faiss.IndexIVFFlat(flat, real.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        exact = faiss.IndexFlatIP(real.shape[1])
        inverted.train(keys[: 40 * lists])
        graph = faiss.IndexHNSWFlat(real.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        for index in (exact, inverted, graph):
            start = time.process_time()
            index.add(keys)
            print(f"{type(index).__name__}: {time.process_time() - start:,.1f} CPU s to add")
        runs["faiss, flat"] = lambda asked: exact.search(asked, 10)[1]
        for probes in (lists // 64, lists // 16, lists // 4):
            options = faiss.SearchParametersIVF(nprobe=max(probes, 1))
            runs[f"faiss, IVF {lists}, {options.nprobe} read"] = lambda asked, options=options: (
                inverted.search(asked, 10, params=options)[1]
            )
        for effort in (128, 256, 512):
            options = faiss.SearchParametersHNSW(efSearch=effort)
            runs[f"faiss, HNSW 32, {effort}"] = lambda asked, options=options: graph.search(
                asked, 10, params=options
            )[1]
    if importlib.util.find_spec("usearch"):
        from usearch.index import Index

        near, start = Index(ndim=real.shape[1], metric="ip", dtype="f16"), time.process_time()
        near.add(np.arange(KEYS), keys)
        print(f"usearch: {time.process_time() - start:,.1f} CPU s to add")

        def by_usearch(effort: int, asked: np.ndarray) -> np.ndarray:
            near.expansion_search = effort
            return near.search(asked, 10).keys.reshape(len(asked), 10).astype(np.int64)

        for effort in (128, 256, 512):
            runs[f"usearch, {effort}"] = functools.partial(by_usearch, effort)
    recalls = {}
    for name, run in runs.items():
        blocks = [run(queries[i : i + 16]) for i in range(0, len(queries), 16)]
        pairs = zip(np.concatenate(blocks), wanted, strict=True)
        recalls[name] = np.mean([len(np.intersect1d(*pair)) / 10 for pair in pairs])
    for asked in (queries[:1], queries[:16]):
        asking = {name: functools.partial(run, asked) for name, run in runs.items()}
        timings = race(asking, rounds=ROUNDS)
        named = {f"{name} [{recalls[name]:.3f}]": timing for name, timing in timings.items()}
        work = f"10 best of {KEYS:,} vectors for {len(asked)} questions [recall@10]"
        inexact = {f"{name} [{x:.3f}]" for name, x in recalls.items() if x < 0.999}
        report(work, "questions", len(asked), named, next(iter(named)), apart=inexact)


def words() -> None:
    """BM25 of bm25s, with numba if it is there, and of tantivy. A text has one to three sentences.

    tantivy rounds lengths of texts to eight bits, so its scores are a little other ones.
    """
    import bm25s
    from models import stories

    from ark_jax.retrieval import bm25_index
    from ark_jax.retrieval.bm25_index import count_bm25, stems

    sections, questions = stories()
    lines = [line for section in sections for line in section.split(". ")]
    rng = np.random.default_rng(3)
    texts = [
        " ".join(lines[i] for i in rng.integers(len(lines), size=rng.integers(1, 4)))
        for _ in range(KEYS)
    ]
    index, of_texts, asked = count_bm25(texts), stems(texts), stems(questions[:ASKED])
    backends = {"numpy": 1 << 60, **({"numba": 0} if installed("numba") else {})}
    runs = {}

    def search(limit: int) -> list[np.ndarray]:
        bm25_index.COMPILED = limit
        return [index.best(query, K)[1] for query in asked]

    for backend, limit in backends.items():
        runs[f"ark_jax, {backend}"] = functools.partial(search, limit)
        peer = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend=backend)
        peer.index(of_texts, show_progress=False)
        theirs = functools.partial(peer.retrieve, asked, k=K, show_progress=False, sorted=True)
        runs[f"bm25s, {backend}"] = lambda theirs=theirs: list(theirs().scores)
    expected = runs["ark_jax, numpy"]()
    for name, run in runs.items():
        for ours, theirs in zip(expected, run(), strict=True):
            np.testing.assert_allclose(theirs[: len(ours)], ours, rtol=1e-5, err_msg=name)
    others = {"tantivy": by_tantivy(of_texts, asked)} if installed("tantivy") else {}
    report(
        f"{K} best of {KEYS:,} texts by BM25 for {len(asked):,} questions, scores the same",
        "questions",
        len(asked),
        race(runs | others, rounds=ROUNDS),
        ours=f"ark_jax, {[*backends][-1]}",
        apart=others,
    )


def by_tantivy(texts: list[list[str]], asked: list[list[str]]):
    """A search of an index in memory, of the same words, in one thread as ours."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    schema = builder.add_text_field("words", tokenizer_name="whitespace").build()
    index = tantivy.Index(schema)
    writer = index.writer(256 << 20)
    for text in texts:
        writer.add_document(tantivy.Document(words=" ".join(text)))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    term = lambda word: tantivy.Query.term_query(schema, "words", word, "freq")
    queries = [
        tantivy.Query.boolean_query([(tantivy.Occur.Should, term(word)) for word in words])
        for words in asked
    ]
    searcher = index.searcher()
    return lambda: [searcher.search(query, K).hits for query in queries]


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(f"{machine()}; OPENBLAS_CORETYPE={os.environ.get('OPENBLAS_CORETYPE', 'unset')}")
    tables = (similar, topk, late, codes, recall, words, few)
    runs = {table.__name__: table for table in tables}
    for name in sys.argv[1:] or runs:
        runs[name]()
