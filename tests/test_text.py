"""Chunks by tokens, batches by length, prompts, rewritten questions, and every way a reply of a language model is come by."""

import collections
import contextlib
import dataclasses
import hashlib
import http.server
import importlib.resources
import itertools
import json
import re
import threading

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ark_jax.data.records import Question
from ark_jax.graph.extract import parse as parse_records
from ark_jax.text import llm, prompts, rewrite
from ark_jax.text.tokens import deal, in_streams, token_chunks

EMBEDDED = importlib.resources.files("ark_jax.embedded")
DOCUMENTS = [json.loads(line) for line in (EMBEDDED / "documents.jsonl").read_text(encoding="utf-8").splitlines()]


# --- chunks ----------------------------------------------------------------------------------------------------------

def byte_pairs() -> tokenizers.Tokenizer:
    """A byte-level BPE as small as can be, with special tokens and a truncation that chunking must not be caught by."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["[CLS]", "[SEP]"], initial_alphabet=alphabet,
                                  show_progress=False)
    raw.train_from_iterator([document["text"] for document in DOCUMENTS[:2]], trainer)
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    raw.enable_truncation(8)
    return raw


RAW = byte_pairs()
FAST = PreTrainedTokenizerFast(tokenizer_object=RAW)


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("ab ,.\n東🙂", max_size=200), st.integers(1, 12), st.data())
def test_chunks_cover_every_token_and_repeat_exactly_the_overlap(text, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    spans = token_chunks(text, FAST, size=size, overlap=overlap)
    plain = tokenizers.Tokenizer.from_str(RAW.to_str())
    plain.no_truncation()
    offsets = plain.encode(text, add_special_tokens=False).offsets
    at = 0  # the first token of the span
    for i, span in enumerate(spans):
        last = at + span.tokens
        assert (span.start, span.end) == (offsets[at][0], offsets[last - 1][1])
        assert span.tokens == size or (i == len(spans) - 1 and span.tokens < size)
        assert span.tokens > overlap or i == 0, "a tail that the window before holds already"
        at = last - overlap
    assert (at + overlap if spans else 0) == len(offsets)
    covered = {i for span in spans for i in range(span.start, span.end)}
    assert [c for i, c in enumerate(text) if not c.isspace() and i not in covered] == []


def test_chunks_of_a_real_document():
    text = DOCUMENTS[0]["text"]
    spans = token_chunks(text, FAST, size=64, overlap=8)
    assert len(spans) > 20 and {span.tokens for span in spans[:-1]} == {64}
    assert text[spans[0].start : spans[0].end].startswith("The Tidal Board was founded in 1784")
    assert all(a.start < b.start < a.end < b.end for a, b in itertools.pairwise(spans))
    assert token_chunks("", FAST, size=64, overlap=8) == []


@pytest.mark.parametrize("overlap", [-1, 4, 5])
def test_an_overlap_that_never_ends_is_refused(overlap):
    with pytest.raises(ValueError, match=f"overlap {overlap} must be at least 0 and below the chunk size 4"):
        token_chunks("a text", FAST, size=4, overlap=overlap)


# --- batches ---------------------------------------------------------------------------------------------------------

@given(st.lists(st.integers(0, 9000), max_size=120), st.sampled_from([1, 64, 1000, 4096, 100_000]),
       st.sampled_from([1_000, 30_000_000, 10**12]), st.sampled_from([1, 2, 8]))
def test_batches_hold_every_text_once_and_no_more_than_their_room(lengths, budget, parameters, devices):
    seen, before = [], float("inf")
    for batch in in_streams(lengths, budget=budget, parameters=parameters, attention=9_000, devices=devices):
        assert len(batch.devices) == devices and batch.room <= max(budget, *lengths, 1)
        assert max(lengths[i] for i in batch.devices[0]) <= batch.length <= before, "longest first"
        for texts in batch.devices:
            assert len(texts) <= batch.rows and sum(lengths[i] for i in texts) <= batch.room
            seen += texts
        before = batch.length
    assert sorted(seen) == list(range(len(lengths)))


def test_arrays_of_a_batch():
    ids = [[7], [1, 2, 3], [], [4, 5]]
    batch, = in_streams([1, 3, 0, 2], budget=100, parameters=1, attention=1, devices=2)
    assert (batch.devices, batch.rows, batch.length, batch.room) == ([[1], [3, 0, 2]], 3, 8, 8)
    tokens, mask = batch.arrays(ids)
    assert tokens[:, :3].tolist() == [[1, 2, 3], [0, 0, 0], [0, 0, 0], [4, 5, 0], [7, 0, 0], [0, 0, 0]]
    assert mask.sum(axis=1).tolist() == [3, 0, 0, 2, 1, 0] and batch.where() == [0, 3, 4, 5]


def test_texts_are_dealt_evenly():
    where, most = deal([5, 9, 2, 2, 4], hands=2, slots=3)
    assert where.tolist() == [3, 0, 1, 5, 4] and most == 11  # 9 and 2; 5, 4 and 2
    where, most = deal([5, 9, 2, 2, 2, 2], hands=2, slots=3)
    assert where.tolist() == [3, 0, 4, 5, 1, 2] and most == 13  # the second hand is full when the last two come


def test_few_shapes_and_little_padding_for_many_lengths():
    lengths = [i % 400 for i in range(2000)]
    batches = list(in_streams(lengths, budget=4096, parameters=20_000_000, attention=14_000))
    assert len({(batch.rows, batch.length, batch.room) for batch in batches}) <= 12
    assert sum(batch.room for batch in batches) < 1.05 * sum(lengths)


# --- prompts ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", prompts.SLOTS)
def test_our_prompts_are_valid_and_a_users_copy_is_the_same(name, tmp_path):
    text = prompts.load(name)
    (tmp_path / "own.txt").write_text(text + "\n", encoding="utf-8")
    assert prompts.load(name, str(tmp_path / "own.txt")) == text


@pytest.mark.parametrize("name, text, words", [
    ("read", "Answer {question}", r"own\.txt: no slot \{passages\}; add it"),
    ("rewrite", "{question} {count}", r"no slot \{answer\}, \{entities\}; add it"),
    ("forward", "{passage} {answer} {question}", r"own\.txt: must end in \{answer\}, the text that is scored"),
    ("backward", "{passage} {answer} {question}?", r"must end in \{question\}"),
])
def test_a_prompt_that_would_go_wrong_in_silence_is_refused(name, text, words, tmp_path):
    (tmp_path / "own.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        prompts.load(name, str(tmp_path / "own.txt"))


def test_braces_that_are_no_slots_are_left_alone():
    text = 'As {"questions": ["..."]}: {question} of {passage}, {unknown}'
    filled = prompts.fill(text, question="why {passage}?", passage=r"\1 {count} {} {question}")
    assert filled == r'As {"questions": ["..."]}: why {passage}? of \1 {count} {} {question}, {unknown}'


def test_a_digest_changes_with_the_text():
    assert prompts.digest("a {slot}") == prompts.digest("a {slot}") != prompts.digest("a {slot} ")
    assert re.fullmatch("[0-9a-f]{16}", prompts.digest(""))


# --- rewritten questions ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("reply, questions", [
    ('{"questions": ["Why A?", "Why B?"]}', ["Why A?", "Why B?"]),
    ('```json\n{"questions": ["Why A?", "Why B?"]}\n```', ["Why A?", "Why B?"]),
    ('Of course!\n\n```\n["Why A?", "Why B?"]\n```', ["Why A?", "Why B?"]),
    ('["Why A?", "Why B?",]', ["Why A?", "Why B?"]),
    ('["Why {A}?", "Why B?"]', ["Why {A}?", "Why B?"]),
    ('{"confusing_questions": ["Why A?", "Why B?",],}', ["Why A?", "Why B?"]),
    ('{"note": "two of them", "questions": ["Why A?", "Why B?"]}', ["Why A?", "Why B?"]),
    ("{'questions': ['Why A?', 'Why B?']}", ["Why A?", "Why B?"]),
    ('{"questions": ["Why A?", "Why B?"', ["Why A?", "Why B?"]),
    ('{"questions": ["Why\\n A? ", "Why A?", "", 5, null, "Why “B”?"]}', ["Why A?", "Why “B”?"]),
    ('<think>A dict like {"questions": []}.</think>{"questions": ["Why A?", "Why B?"]}', ["Why A?", "Why B?"]),
    ('{"questions": ["Why A?", "Why B?"]}\n\nI hope these {questions} help!', ["Why A?", "Why B?"]),
    ('{"questions": "Why A?"}', []),
    ("I will not.", []),
    ("", []),
])
def test_rewritten_questions_are_read(reply, questions):
    assert rewrite.parse(reply) == questions


BRACKETS = st.sampled_from(['{"questions": [', "[", "]", "{", "}", '"', ",", "a", "\\", "\n", ":"])


@given(st.text() | st.lists(BRACKETS).map("".join))
def test_no_reply_of_a_rewriter_raises(reply):
    assert all(isinstance(x, str) and x.strip() for x in rewrite.parse(reply))


@pytest.mark.parametrize("questions, words", [
    (["Why A?", "Why B?"], None),
    (["Why A?", "Why B?", "Why C?"], None),
    (["Why A?"], "2 different questions were asked for, 1 could be read"),
    ([], "2 different questions were asked for, 0 could be read"),
    (["Why A?", "WHO built it?"], "One of your versions is the original question"),
])
def test_what_the_model_is_told(questions, words):
    complaint = rewrite.complaint(questions, Question("q", "Who  built\nit?", ("Ada",), ("d",)), 2)
    assert complaint is None if words is None else words in complaint


# --- replies ---------------------------------------------------------------------------------------------------------

SETTINGS = llm.Settings(backend="replay", model="toy", base_url="", key_env="ARK_TEST_KEY", temperature=0.0, max_tokens=64,
                        concurrency=4, replies="")
SECRET = "sk-never-on-disk"


def calls(n: int = 3) -> list[llm.Call]:
    return [llm.Call(f"extract/{i}", "extract", f"Read passage {i}", {"passage": f"Passage {i}"}) for i in range(n)]


def replay(path, **changes) -> llm.Settings:
    return dataclasses.replace(SETTINGS, replies=str(path), **changes)


def completion(text: str | None) -> dict:
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "toy",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


@pytest.fixture
def recording(tmp_path):
    """`make(calls, texts)` writes what a live run would have left."""
    def make(some, texts, name="recorded.jsonl"):
        path = tmp_path / name
        replies = llm.Replies(path)
        digest = lambda prompt: hashlib.sha256(prompt.encode()).hexdigest()
        for call, text in zip(some, texts, strict=True):
            replies.add({"item": call.item, "key": call.item, "prompt": digest(call.prompt), "reply": completion(text)})
        return path
    return make


def test_replay(recording, tmp_path):
    path = recording(calls(), ["zero", "one", "two é 東"])
    cache = tmp_path / "run" / "replies.jsonl"
    assert llm.complete(calls(), replay(path), cache, "x") == (
        {"extract/0": "zero", "extract/1": "one", "extract/2": "two é 東"}, [])
    assert not cache.exists()  # a recording is read where it lies, so a newer one is never hidden


def test_a_new_recording_is_not_hidden_by_the_cache(recording, tmp_path):
    llm.complete(calls(), replay(recording(calls(), "abc")), tmp_path / "cache.jsonl", "x")
    new = recording(calls(), "xyz", "new.jsonl")
    assert llm.complete(calls(), replay(new), tmp_path / "cache.jsonl", "x")[0]["extract/0"] == "x"


def test_a_call_that_was_not_recorded_is_named(recording, tmp_path):
    path = recording(calls(2), "ab")
    missing = r"recorded\.jsonl has no reply for 2 of 4 calls, the first being extract/2: .*Record anew"
    with pytest.raises(RuntimeError, match=missing):
        llm.complete(calls(4), replay(path), tmp_path / "cache.jsonl", "x")
    with pytest.raises(FileNotFoundError, match=r"llm\.replies='.*nowhere': no such file"):
        llm.complete(calls(), replay(tmp_path / "nowhere"), tmp_path / "cache.jsonl", "x")


def test_a_prompt_that_drifted_is_reported(recording, tmp_path):
    path = recording(calls(), "abc")
    changed = [calls()[0], llm.Call("extract/1", "extract", "Read passage one", {}), calls()[2]]
    texts, drifted = llm.complete(changed, replay(path), tmp_path / "cache.jsonl", "x")
    assert texts["extract/1"] == "b" and drifted == ["extract/1"]


def test_a_half_written_last_row_is_ignored_and_swallows_nothing(recording, tmp_path):
    path = recording(calls(), "abc")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [row["item"] for row in llm.read_rows(path)] == ["extract/0", "extract/1"]
    with pytest.raises(RuntimeError, match="no reply for 1 of 3 calls, the first being extract/2"):
        llm.complete(calls(), replay(path), tmp_path / "cache.jsonl", "x")
    llm.Replies(path).add({"item": "extract/2", "key": "k", "prompt": "", "reply": completion("again")})
    assert [llm.text_of(row["reply"]) for row in llm.read_rows(path)] == ["a", "b", "again"]


@pytest.mark.parametrize("text", ["one\u2028two", "one\u0085two", "one\x0b\x0c\x1c\r\ntwo"], ids=ascii)
def test_no_character_of_a_reply_breaks_its_row(text, recording, tmp_path):
    path = recording(calls(1), [text])
    assert llm.complete(calls(1), replay(path), tmp_path / "cache.jsonl", "x")[0] == {"extract/0": text}
    assert len(llm.Replies(path).rows) == 1


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"llm\.backend='gpt': must be one of openai, local, replay, none"):
        llm.complete(calls(), replay("", backend="gpt"), tmp_path / "cache.jsonl", "x")


def test_our_own_model_is_asked_once_and_once_more_with_a_remark(tmp_path):
    """What it answers is kept as it comes: a run that breaks off asks for the rest alone."""
    asked: list[list[str]] = []

    def write(prompts, heard, fail=False):
        asked.append(prompts)
        for i, prompt in enumerate(prompts):
            if fail and i == 2:
                raise KeyboardInterrupt
            heard(i, "better" if "\n\n" in prompt else f"reply to {prompt[-1]}")

    accept = lambda call, text: "Say it better." if text == "reply to 1" else None
    ask = lambda fail=False: llm.complete(calls(), replay("", backend="local"), tmp_path / "cache.jsonl", "x", accept,
                                          lambda prompts, heard: write(prompts, heard, fail))
    with pytest.raises(KeyboardInterrupt):
        ask(fail=True)
    assert ask() == ({"extract/0": "reply to 0", "extract/1": "better", "extract/2": "reply to 2"}, [])
    first, *later = asked
    assert first == [f"Read passage {i}" for i in range(3)]
    assert later == [["Read passage 1", "Read passage 2"], ["Read passage 1\n\nSay it better."]]
    assert ask() and len(asked) == 3  # all is in the cache


def test_without_a_model_replies_can_be_read(tmp_path):
    some = [llm.Call(f"extract/{d['id']}", "extract", d["text"], {"passage": d["text"]}) for d in DOCUMENTS]
    names = ["Long Staff", "Barnaby Quill", "Marrowgate"]
    question = Question("q", "Who read the {post}?", ("Ada",), ("d",))
    some.append(llm.Call("rewrite/q", "rewrite", "p", {"question": question.question, "names": names, "count": 10}))
    texts, drifted = llm.complete(some, replay("", backend="none"), tmp_path / "cache.jsonl", "x")
    assert drifted == [] and len(DOCUMENTS) > 10
    for d in DOCUMENTS:
        entities, relations, lost = parse_records(texts[f"extract/{d['id']}"], d["id"])
        assert len(entities) > 20 and len(relations) > 20 and lost == []
        known = {entity.name for entity in entities}
        assert {r.source for r in relations} | {r.target for r in relations} <= known
        assert all(name in " ".join(d["text"].split()) for name in known)
    questions = rewrite.parse(texts["rewrite/q"])
    assert rewrite.complaint(questions, question, 10) is None and len(questions) == 10
    assert all("ho read the {post}" in q and any(name in q for name in names) for q in questions)


# --- a live endpoint -------------------------------------------------------------------------------------------------

class Endpoint(http.server.ThreadingHTTPServer):
    """Speaks the chat completions protocol; `answer(prompt, nth)` gives a text, a JSON body, a page, or (status, headers)."""

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.requests, self.keys, self.lock = answer, collections.defaultdict(list), set(), threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][0]["content"]
        with self.server.lock:
            self.server.requests[prompt].append(body)
            self.server.keys.add(self.headers["Authorization"])
            nth = len(self.server.requests[prompt])
        given = self.server.answer(prompt, nth) if self.path == "/v1/chat/completions" else (404, {})
        status, headers = given if isinstance(given, tuple) else (200, {})
        body = completion(given) if isinstance(given, str) else given if not isinstance(given, tuple) else {"error": "busy"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "text/html" if isinstance(body, bytes) else "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def endpoint(answer):
    server = Endpoint(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def live(tmp_path, monkeypatch):
    """`ask(server, calls, ...)` as the pipeline does; afterwards the key must be in no file."""
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")
    monkeypatch.setenv("ARK_TEST_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def ask(server, some, *accept, **changes):
        settings = replay("", backend="openai", base_url=f"http://127.0.0.1:{server.server_port}/v1", **changes)
        return llm.complete(some, settings, tmp_path / "cache.jsonl", "x", *accept)[0]

    yield ask
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_live_replies_are_asked_for_once(live):
    with endpoint(lambda prompt, nth: f"Re: {prompt}") as server:
        assert live(server, calls()) == {f"extract/{i}": f"Re: Read passage {i}" for i in range(3)}
        assert live(server, calls(4))["extract/3"] == "Re: Read passage 3"
        assert {prompt: len(bodies) for prompt, bodies in server.requests.items()} == {f"Read passage {i}": 1 for i in range(4)}
        sent = server.requests["Read passage 0"][0]
        assert server.keys == {f"Bearer {SECRET}"}
        assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("toy", 0.0, 64)
        assert sent["messages"] == [{"role": "user", "content": "Read passage 0"}]
        live(server, calls(1), temperature=0.5)  # what decides a reply decides its place in the cache
        assert len(server.requests["Read passage 0"]) == 2


@pytest.mark.parametrize("trouble", [(429, {"Retry-After": "0"}), (500, {})], ids=str)
def test_a_busy_server_is_asked_again(trouble, live):
    with endpoint(lambda prompt, nth: trouble if nth == 1 else "at last") as server:
        assert live(server, calls(1)) == {"extract/0": "at last"}
        assert len(server.requests["Read passage 0"]) == 2


def test_a_malformed_reply_is_remarked_upon_once(live):
    accept = lambda call, text: None if "good" in text else f"Not so, {call.item}."
    texts = {"Read passage 0": ["bad", "good"], "Read passage 1": ["bad", "worse", "never sent"],
             "Read passage 2": ["good as it is"]}
    with endpoint(lambda prompt, nth: texts[prompt][nth - 1]) as server:
        assert live(server, calls(), accept) == {"extract/0": "good", "extract/1": "worse", "extract/2": "good as it is"}
        assert [len(server.requests[f"Read passage {i}"]) for i in range(3)] == [2, 2, 1]
        assert server.requests["Read passage 0"][1]["messages"] == [
            {"role": "user", "content": "Read passage 0"}, {"role": "assistant", "content": "bad"},
            {"role": "user", "content": "Not so, extract/0."}]
        assert live(server, calls(), accept)["extract/1"] == "worse"  # from the cache, taken as it is
        assert len(server.requests["Read passage 1"]) == 2


@pytest.mark.parametrize("trouble", [(400, {}), {"choices": []}, {"error": {"message": "quota"}}, {"choices": [{"index": 0}]},
                                     b"<html>Wrong address</html>"], ids=str)
def test_a_call_that_fails_leaves_the_others_and_is_all_that_is_asked_again(trouble, live):
    mended = threading.Event()
    failing = lambda prompt: prompt == "Read passage 1" and not mended.is_set()
    with endpoint(lambda prompt, nth: trouble if failing(prompt) else f"Re: {prompt}") as server:
        with pytest.raises(RuntimeError, match=r"^1 of 3 calls failed, the first being extract/1: .*run the same command again"):
            live(server, calls(), concurrency=1)
        mended.set()
        assert live(server, calls()) == {f"extract/{i}": f"Re: Read passage {i}" for i in range(3)}
        assert [len(server.requests[f"Read passage {i}"]) for i in range(3)] == [1, 2, 1]


def test_a_second_reply_that_is_none_is_not_kept(live):
    mended = threading.Event()
    with endpoint(lambda prompt, nth: "good" if mended.is_set() else "bad" if nth == 1 else {"choices": []}) as server:
        accept = lambda call, text: None if text == "good" else "Not so."
        with pytest.raises(RuntimeError, match=r"^1 of 1 calls failed, the first being extract/0"):
            live(server, calls(1), accept)
        mended.set()
        assert live(server, calls(2), accept) == {"extract/0": "good", "extract/1": "good"}


def test_a_reply_without_a_word_is_a_blank_one(live):
    with endpoint(lambda prompt, nth: completion(None) if nth == 1 else f"Re: {prompt}") as server:
        assert live(server, calls(1)) == {"extract/0": ""}
        accept = lambda call, text: None if text else "Nothing came."
        assert live(server, calls(2)[1:], accept) == {"extract/1": "Re: Read passage 1"}
        assert [m["content"] for m in server.requests["Read passage 1"][1]["messages"]] == ["Read passage 1", "", "Nothing came."]


def test_a_missing_key_is_named(monkeypatch, tmp_path):
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with pytest.raises(RuntimeError, match=r"set \$ARK_TEST_KEY to your key"):
        llm.complete(calls(), replay("", backend="openai"), tmp_path / "cache.jsonl", "x")
    with endpoint(lambda prompt, nth: "open to all") as server:
        settings = replay("", backend="openai", base_url=f"http://127.0.0.1:{server.server_port}/v1")
        assert llm.complete(calls(1), settings, tmp_path / "cache.jsonl", "x")[0] == {"extract/0": "open to all"}
