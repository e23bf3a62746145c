"""What a server answers: vectors, scores, passages, counts, and errors in its clients' forms."""

import base64
import contextlib
import dataclasses
import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from starlette.testclient import TestClient
from support import llm_server, serving, tiny
from support.serving import QUESTION, TEXTS

from ark_jax import layout
from ark_jax.data.records import Document
from ark_jax.index import folder as folders
from ark_jax.index import reader
from ark_jax.index.index import Index
from ark_jax.index.passages import hit_row
from ark_jax.models import retriever as retrievers
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.serve.app import PATHS, make_app
from ark_jax.serve.models import Embedder, Texts
from ark_jax.serve.work import CALLS

SENTENCES = [" ".join(text.split()[:4]) for text in TEXTS.values()]
LONG = "tide " * 60  # the retriever reads 48 tokens


@pytest.fixture(scope="module")
def vectors(world):
    """The retriever's vectors of `SENTENCES`, as documents."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        retriever = Retriever.from_pretrained(world / "tuned")
        return retriever.encode(SENTENCES, kind="document")


def test_the_openai_path_returns_vectors_and_token_counts(client, vectors):
    status, answer = client.post("/v1/embeddings", {"input": SENTENCES, "model": "any"})
    assert status == 200 and answer["object"] == "list" and answer["model"] == "tuned"
    assert [row["index"] for row in answer["data"]] == [0, 1, 2, 3]
    received = np.array([row["embedding"] for row in answer["data"]])
    np.testing.assert_allclose(received, vectors, atol=1e-5)
    tokens = answer["usage"]["prompt_tokens"]
    assert tokens == answer["usage"]["total_tokens"] > 4 * 10
    one = client.post("/v1/embeddings", {"input": SENTENCES[0], "encoding_format": "base64"})[1]
    data = base64.b64decode(one["data"][0]["embedding"])
    np.testing.assert_allclose(np.frombuffer(data, "<f4"), vectors[0], atol=1e-5)
    assert 0 < one["usage"]["prompt_tokens"] < tokens


def test_the_openai_client_works_with_the_server(client, vectors, monkeypatch):
    openai = pytest.importorskip("openai", reason="needs pip install 'ark-jax[llm]'")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    asks = openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0)
    with asks:
        answer = asks.embeddings.create(model="tuned", input=SENTENCES)  # asks for base64
        received = np.array([row.embedding for row in answer.data])
        np.testing.assert_allclose(received, vectors, atol=1e-5)
        few = asks.embeddings.create(model="tuned", input=SENTENCES[0], dimensions=8)
        cut = vectors[0, :8] / np.linalg.norm(vectors[0, :8])
        np.testing.assert_allclose(few.data[0].embedding, cut, atol=1e-5)
        with pytest.raises(openai.BadRequestError, match="input` cannot be empty"):
            asks.embeddings.create(model="tuned", input="")


def test_the_embed_path_returns_normalised_or_raw_vectors(client, vectors):
    status, received = client.post("/embed", {"inputs": SENTENCES})
    assert status == 200
    np.testing.assert_allclose(received, vectors, atol=1e-5)
    assert len(client.post("/embed", {"inputs": SENTENCES[0]})[1]) == 1
    raw = np.array(client.post("/embed", {"inputs": SENTENCES, "normalize": False})[1])
    norms = np.linalg.norm(raw, axis=1)
    assert np.abs(norms - 1).max() > 0.1
    np.testing.assert_allclose(raw / norms[:, None], vectors, atol=1e-5)


def test_a_long_text_is_truncated_only_on_request(client):
    status, answer = client.post("/embed", {"inputs": [SENTENCES[0], LONG]})
    assert status == 413 and answer["error_type"] == "Validation"
    assert answer["error"].startswith("each text must have at most 48 tokens, and one has more")
    status, received = client.post("/embed", {"inputs": LONG, "truncate": True})
    longer = client.post("/embed", {"inputs": LONG + "salt", "truncate": True})[1]
    assert status == 200 and received == longer
    assert client.post("/v1/embeddings", {"input": LONG})[0] == 413


def test_the_prompt_name_chooses_the_prompt(world, client):
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        retriever = Retriever.from_pretrained(world / "tuned")
        query = retriever.encode([QUESTION], kind="query")
    received = client.post("/embed", {"inputs": QUESTION, "prompt_name": "query"})[1]
    np.testing.assert_allclose(received, query, atol=1e-5)


@pytest.fixture
def reranking(world):
    """The scorer of the service, and what it gives the sentences for the question."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        scorer = CrossEncoder.from_pretrained(world / "reranker")
        return scorer, scorer.score([(QUESTION, text) for text in SENTENCES])


def test_the_rerank_path_ranks_texts_by_score(reranking, client):
    _, logits = reranking
    status, ranked = client.post("/rerank", {"query": QUESTION, "texts": SENTENCES})
    assert status == 200 and [set(row) for row in ranked] == [{"index", "score"}] * 4
    assert [row["index"] for row in ranked] == np.argsort(-logits).tolist()
    scores = [row["score"] for row in ranked]
    np.testing.assert_allclose(scores, np.sort(1 / (1 + np.exp(-logits)))[::-1], atol=1e-5)


def test_the_rerank_path_can_return_logits_and_texts(reranking, client):
    _, logits = reranking
    body = {"query": QUESTION, "texts": SENTENCES, "raw_scores": True, "return_text": True}
    ranked = client.post("/rerank", body)[1]
    np.testing.assert_allclose([row["score"] for row in ranked], np.sort(logits)[::-1], atol=1e-4)
    assert [row["text"] for row in ranked] == [SENTENCES[row["index"]] for row in ranked]


def test_the_rerank_path_refuses_a_text_that_is_too_long_unless_it_may_be_cut(reranking, client):
    limit = reranking[0].max_length
    body = {"query": QUESTION, "texts": ["tide " * limit]}
    status, answer = client.post("/rerank", body)
    assert status == 413 and f"at most {limit} tokens" in answer["error"]
    assert client.post("/rerank", body | {"truncate": True})[0] == 200


@pytest.mark.parametrize("by", ["hybrid", "dense", "bm25"])
def test_the_search_path_returns_the_passages_of_the_index(by, world, client):
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        hits = Index.open(world / "index").search([QUESTION], k=2, by=by)[0]
    status, answer = client.post("/search", {"question": QUESTION, "k": 2, "by": by})
    assert status == 200 and list(answer) == ["question", "by", "passages"]
    assert (answer["question"], answer["by"]) == (QUESTION, by)
    rows = [hit_row(hit) for hit in hits]
    scores = [[row.pop("score") for row in rows] for rows in (rows, answer["passages"])]
    assert answer["passages"] == rows and scores[1] == pytest.approx(scores[0], abs=1e-5)
    body = {"question": QUESTION, "by": by, "where": "id in ('salt', 'markup')"}
    found = client.post("/search", body)[1]["passages"]
    assert found and {row["document"] for row in found} <= {"salt", "markup"}


def test_the_search_path_can_compare_two_models(client):
    status, answer = client.post("/search", {"question": QUESTION, "k": 3, "compare": True})
    assert status == 200 and list(answer["compared"]) == ["base", "tuned"]
    assert {len(rows) for rows in answer["compared"].values()} == {3}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """The folder of a tiny language model."""
    folder = tmp_path_factory.mktemp("lm")
    changes = {"max_position_embeddings": 1200}
    tiny.write(folder, "llama", tokenizer="plain", changes=changes)
    return folder


def test_the_ask_path_answers_with_a_local_reader(service, lm, monkeypatch):
    monkeypatch.setattr(reader, "MAX_NEW_TOKENS", 16)
    with serving.reading(service, lambda: reader.Reader.local(str(lm))) as client:
        status, answer = client.post("/ask", {"question": QUESTION, "k": 2})
        body = json.dumps({"question": QUESTION, "k": 2, "stream": True}).encode()
        _, headers, events = client.send("POST", "/ask", body, content_type="application/json")
        assert headers["content-type"].startswith("text/event-stream")
        *pieces, last = [event.splitlines() for event in events.decode().split("\n\n")[:-1]]
        assert last[0] == "event: answer" and json.loads(last[1][6:]) == answer
        assert pieces and {name for name, _ in pieces} == {"event: text"}
        passages = client.post("/search", {"question": QUESTION, "k": 2})[1]["passages"]
    assert status == 200 and answer["question"] == QUESTION
    assert list(answer) == ["question", "answer", "cited", "supported", "sources", "read", "reply"]
    assert answer["read"] == [hit["chunk"] for hit in passages]


def test_the_ask_path_streams_the_reply_of_an_endpoint(service, tmp_path, monkeypatch):
    pytest.importorskip("openai", reason="the reader needs pip install 'ark-jax[llm]'")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    said = "Josiah Penhallow, a clerk of the harbour, did so"
    with llm_server.serving(lambda messages: f"<answer>{said}</answer>") as endpoint:
        make = lambda: reader.Reader.endpoint(endpoint.url, "m", tmp_path / "replies.jsonl")
        with serving.reading(service, make) as client:
            body = json.dumps({"question": QUESTION, "k": 2, "stream": True}).encode()
            events = client.send("POST", "/ask", body, content_type="application/json")[2]
    *pieces, last = [event.splitlines() for event in events.decode().split("\n\n")[:-1]]
    texts = [json.loads(data[6:])["text"] for name, data in pieces if name == "event: text"]
    assert len(texts) > 4 and "".join(texts) == said
    assert last[0] == "event: answer" and json.loads(last[1][6:])["answer"] == said


def test_requests_of_any_length_trigger_no_compilation(client):
    words = " ".join(SENTENCES).split()
    client.post("/search", {"question": QUESTION})
    before = retrievers._embed_jit._cache_size()
    for size in range(1, 16):
        texts = [" ".join(words[start : start + size]) for start in range(size)]
        assert client.post("/embed", {"inputs": texts, "truncate": True})[0] == 200
    assert retrievers._embed_jit._cache_size() == before


def metrics_of(client) -> dict[str, str]:
    body = client.send("GET", "/metrics")[2]
    lines = body.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_the_metrics_path_returns_prometheus_text(client):
    status, headers, _ = client.send("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=")


def test_the_metrics_count_requests_by_path_and_status(client):
    client.post("/embed", {"inputs": ["a", "b"]})
    client.get("/nowhere")
    values = metrics_of(client)
    assert float(values['ark_requests_total{path="/embed",status="200"}']) >= 1
    assert float(values['ark_requests_total{path="other",status="404"}']) >= 1
    counted = float(values['ark_request_seconds_count{path="/embed"}'])
    assert float(values['ark_request_seconds_bucket{le="+Inf",path="/embed"}']) == counted >= 1


def test_the_metrics_count_batches_and_their_items(client):
    client.post("/embed", {"inputs": ["a", "b"]})
    values = metrics_of(client)
    items = float(values['ark_batch_items_total{kind="embed"}'])
    assert items > float(values['ark_batches_total{kind="embed"}']) >= 1
    assert values["ark_waiting_items"] == "0.0"


def test_a_damaged_index_is_unhealthy(world, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SMALL", 0)
    for folder in ("tuned", "index"):
        shutil.copytree(world / folder, tmp_path / folder)
    (path,) = (tmp_path / "index").glob("*/words/scores.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    service = serving.open_tiny(tmp_path)
    with serving.serving(service) as client:
        assert service.damage.result(30) == "words/scores.npy is damaged"
        status, text = client.get("/health")
        assert status == 503 and "the index: words/scores.npy is damaged; `ark-jax index`" in text
    service.work.close()


def test_the_health_and_info_paths_describe_the_server(client):
    assert json.loads(client.get("/health")[1])["status"] == "ok"
    info = json.loads(client.get("/info")[1])
    assert (info["model_id"], info["reranker"], info["index"]) == ("tuned", "reranker", "index")
    assert info["max_input_length"] == 48 and info["model_type"]["embedding"] == {"pooling": "mean"}


BAD = [
    ("/embed", b"", 422, "the body is not JSON"),
    ("/embed", b'{"inputs": "a\xff"}', 422, "the body is not UTF-8: byte 13 is wrong"),
    ("/embed", b"[" * 100_000, 422, "nested too deeply"),
    ("/embed", b'["a"]', 422, "the body must be a JSON object"),
    ("/embed", {}, 422, "`inputs` is missing"),
    ("/embed", {"inputs": 7}, 422, "`inputs` must be a list of texts"),
    ("/embed", {"inputs": ["a", None]}, 422, "`inputs` must be a list of texts"),
    ("/embed", {"inputs": []}, 400, "`inputs` cannot be empty"),
    ("/embed", {"inputs": ["a", " "]}, 400, "`inputs` cannot be empty"),
    ("/embed", b'{"inputs": "\\ud800"}', 422, "half of a surrogate pair"),
    ("/embed", {"inputs": ["a"] * 2049}, 413, "batch size 2049 > maximum allowed batch size 2048"),
    ("/embed", {"inputs": "a", "truncate": 1}, 422, "`truncate` must be one of true, false"),
    ("/embed", {"inputs": "a", "truncation_direction": "Left"}, 422, 'must be one of "Right"'),
    ("/embed", {"inputs": "a", "prompt_name": "q"}, 422, 'one of "query", "document"'),
    ("/embed", {"inputs": "a", "dimensions": 33}, 422, "`dimensions` must be a whole number from"),
    ("/rerank", {"texts": ["a"]}, 422, "`query` is missing"),
    ("/rerank", {"query": "a", "texts": []}, 400, "`texts` cannot be empty"),
    ("/search", {"question": ""}, 400, "`question` cannot be empty"),
    ("/search", {"question": ["a"]}, 422, "`question` must be a text"),
    ("/search", {"question": "a", "k": 0}, 422, "`k` must be a whole number from 1 to 100"),
    ("/search", {"question": "a", "k": True}, 422, "`k` must be a whole number from 1 to 100"),
    ("/search", {"question": "a", "by": "words"}, 422, "`by` must be one of"),
    ("/search", {"question": "a", "where": "x = 1"}, 422, "`where`: there is no column 'x', at"),
    ("/ask", {"question": "a", "where": 1}, 422, "`where` must be a text"),
    ("/ask", {"question": "a"}, 422, "there is no reader; start the server with --reader=MODEL"),
    ("/search", {"question": "tide " * 2001}, 413, "a question may have 2,000 tokens"),
    ("/ask", {"question": "a" * 10**6, "by": "bm25"}, 413, "a question may have 2,000 tokens"),
    ("/nowhere", {}, 404, "POST /nowhere: Not Found; there are /v1/embeddings, "),
    ("/health", {}, 405, "POST /health: Method Not Allowed"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), BAD)
def test_invalid_input_is_reported_like_text_embeddings_inference(
    path, body, status, message, client
):
    got, answer = client.post(path, body)
    assert got == status and set(answer) == {"error", "error_type"} and message in answer["error"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is not JSON"),
        ({"model": "m"}, 400, "`input` is missing"),
        ({"input": [1, 2]}, 400, "check_embedding_ctx_length=False"),
        ({"input": [[1], [2]]}, 400, "token ids"),
        ({"input": "a", "encoding_format": "int8"}, 400, '"float", "base64"'),
        ({"input": ["a"] * 2049}, 413, "batch size 2049"),
    ],
)
def test_invalid_input_is_reported_like_openai(body, status, message, client):
    got, answer = client.post("/v1/embeddings", body)
    assert got == status and list(answer) == ["error"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_not_declared_as_json_is_refused(client):
    """A page elsewhere can send such a body without asking the browser."""
    status, _, answer = client.send("POST", "/embed", b'{"inputs": "a"}', content_type="text/plain")
    assert status == 415 and b"content-type: application/json" in answer


def test_a_model_with_token_vectors_only_searches(tmp_path):
    models = tiny.multi_vector(tmp_path, "tuned")
    documents = [Document(name, name.title(), text) for name, text in TEXTS.items()]
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        index = Index.build(tmp_path / "index", models / "tuned", documents)
        expected = {by: index.search([QUESTION], k=3, by=by)[0] for by in ("hybrid", "dense")}
    service = serving.open_tiny(tmp_path, compare="pooled/tuned")
    with contextlib.closing(service.work):
        asks = TestClient(make_app(service), base_url="http://localhost")
        for by, hits in expected.items():
            body = {"question": QUESTION, "k": 3, "by": by}
            passages = asks.post("/search", json=body).json()["passages"]
            assert [x["chunk"] for x in passages] == [hit.chunk for hit in hits]
            scores = [hit.score for hit in hits]
            assert [x["score"] for x in passages] == pytest.approx(scores, abs=2e-5)
        compared = asks.post("/search", json=body | {"compare": True}).json()["compared"]
        assert compared["tuned (tuned)"] == passages != compared["tuned (base)"]
        for path, field in (("/embed", "inputs"), ("/v1/embeddings", "input")):
            answer = asks.post(path, json={field: "a"})
            assert answer.status_code in (400, 422)
            assert "a vector for each token, which this path has no form for" in answer.text
        assert asks.get("/info").json()["model_type"] == {"embedding": {"pooling": "none"}}


def test_texts_of_both_kinds_in_a_batch_leave_out_their_own_prompt(tmp_path, mesh):
    folder = tiny.write(tmp_path, "bert", tokenizer="cls")
    prompts = {"query": "Find the one of: ", "document": ""}
    tiny.sentence_transformer(folder, pooling="mean", max_seq_length=48, prompts=prompts)
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"include_prompt": False}))
    retriever = Retriever.from_pretrained(folder)
    embedder = Embedder(retriever, "tiny")
    items, expected = [], []
    for kind, texts in (("query", ["a", "salt"]), ("document", [*TEXTS.values()])):
        items += embedder.prepare(Texts(texts, kind, tiny.WIDTH, cut=True))
        expected += [*retriever.encode(texts, kind=kind)]
    vectors = [embedded.vector for embedded in embedder.run(items[::-1])][::-1]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_paths_without_their_model_name_the_missing_flag(service):
    bare = dataclasses.replace(service, base=None, reranker=None)
    asks = TestClient(make_app(bare), base_url="http://localhost")  # starts and ends nothing
    answer = asks.post("/rerank", json={"query": "a", "texts": ["b"]})
    assert answer.status_code == 424 and "--reranker=FOLDER" in answer.json()["error"]
    answer = asks.post("/search", json={"question": "a", "compare": True})
    assert answer.status_code == 422 and "--compare=MODEL" in answer.json()["error"]


@pytest.fixture
def guarded(service):
    """A client of the service with the token s3cret."""
    app = make_app(dataclasses.replace(service, token="s3cret"))
    return TestClient(app, base_url="http://search.example")


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer s3cre"}, {"authorization": "Basic s3cret"}],
    ids=["none", "wrong", "basic"],
)
def test_requests_without_the_token_are_refused(guarded, headers):
    for path in ("/info", "/metrics", "/nowhere"):
        answer = guarded.get(path, headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


def test_a_token_that_is_not_ascii_is_refused(guarded):
    odd = {"authorization": b"Bearer \xe9"}
    answer = guarded.post("/v1/embeddings", json={"input": "a"}, headers=odd)
    assert answer.status_code == 401 and "token" in answer.json()["error"]["message"]


def test_the_document_of_the_paths_names_each_path_and_only_fields_that_are_read(client):
    paths = json.loads(client.get("/openapi.json")[1])["paths"]
    assert paths.keys() == {path for path in PATHS if not re.match("/(page.*)?$", path)}
    for path, methods in paths.items():
        (method,) = methods
        assert PATHS[path][0] == method.upper()
        if method == "post":
            schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            right = {"query": "a", "texts": ["a"], "question": "a", "input": "a", "inputs": "a"}
            for field in schema["properties"].keys() - {"model"}:  # any model is taken
                wrong = {name: right[name] for name in schema["required"]} | {field: {}}
                status, answer = client.post(path, wrong)
                assert status in (400, 422) and f"`{field}`" in str(answer)
    (model,) = json.loads(client.get("/v1/models")[1])["data"]
    assert model["id"] == "tuned"


def test_a_request_with_the_token_is_answered(guarded):
    assert guarded.get("/info", headers={"authorization": "Bearer s3cret"}).status_code == 200


def test_the_page_and_the_health_path_need_no_token(guarded):
    for path in ("/", "/health", "/page.js", "/page.css"):
        assert guarded.get(path).status_code == 200


def test_without_a_token_only_local_host_names_are_accepted(client):
    """A page elsewhere may let its own name lead to 127.0.0.1."""
    for name in ("localhost:1", "127.0.0.1", "[::1]:8000"):
        assert client.send("GET", "/info", host=name)[0] == 200
    broken = ("[::1", "localhost:abc", "evil@localhost", "localhost/")
    for name in ("evil.example", "localhost.evil.example:8000", "0.0.0.0", *broken):
        status, _, body = client.send("GET", "/info", host=name)
        assert status == 421 and "localhost alone" in body.decode()


def test_requests_beyond_the_capacity_are_refused(world):
    service = serving.open_tiny(world, capacity=2)
    gate, entered = threading.Event(), threading.Event()
    blocked = service.work.submit(CALLS, lambda: (entered.set(), gate.wait(30)))
    assert entered.wait(30)
    with serving.serving(service) as client, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(client.post, "/search", {"question": "tide", "by": "bm25"})
        while service.work.waiting < 2:
            time.sleep(0.01)
        status, headers, body = client.send(
            "POST", "/embed", b'{"inputs": "a"}', content_type="application/json"
        )
        unready = client.get("/readyz")[0]
        gate.set()
        assert (status, unready, headers["retry-after"]) == (429, 503, "1")
        assert json.loads(body)["error_type"] == "Overloaded"
        assert accepted.result(30)[0] == 200 and blocked.result(30)
    service.work.close()
