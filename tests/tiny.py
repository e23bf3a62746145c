"""Tiny checkpoints on disk as Hugging Face would write them, random but the same everywhere, without torch.

Every number that a loader could forget differs from its default, and every size from every other it could be
mistaken for; heads, key heads, width, ffn and vocabulary divide by each mesh of the tests.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import tokenizers as tks
from safetensors.numpy import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import ark_jax

DECODERS = ("qwen3", "qwen2", "llama", "mistral")
FAMILIES = (*DECODERS, "bert")
VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, SEGMENTS = 304, 32, 2, 4, 2, 12, 48, 3
POSITIONS = 640
DOCUMENTS = Path(ark_jax.__file__).parent / "embedded" / "documents.jsonl"
# The first three ids of every tokenizer here. The retriever's end token is its pad token, as in Qwen3-Embedding.
BEGIN, STOP, END = "<s>", "</s>", "<|end|>"
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"


def config(family: str) -> dict:
    """A config.json; old and new spellings of the rotary settings both occur."""
    common = {"model_type": family, "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "intermediate_size": FFN, "max_position_embeddings": POSITIONS}
    if family == "bert":
        return common | {"architectures": ["BertModel"], "type_vocab_size": SEGMENTS, "layer_norm_eps": 3e-5,
                         "hidden_act": "gelu", "pad_token_id": 0}
    common |= {"architectures": [{"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral"}[family]
                                 + "ForCausalLM"],
               "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": 3e-5,
               "eos_token_id": 1, "bos_token_id": 0}
    return common | {
        "qwen3": {"rope_theta": 12345.0, "tie_word_embeddings": True, "attention_bias": False,
                  "use_sliding_window": False, "sliding_window": 4},
        "qwen2": {"rope_theta": 12345.0, "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 4},
        # One of the six frequencies is kept, one interpolated, four slowed.
        "llama": {"rope_theta": 12345.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
                  "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0,
                                   "original_max_position_embeddings": 64}},
        "mistral": {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}, "tie_word_embeddings": True,
                    "sliding_window": None},
    }[family]


def shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a family's published checkpoints."""
    if family == "bert":
        out = {"bert.embeddings.word_embeddings.weight": (VOCAB, WIDTH),
               "bert.embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
               "bert.embeddings.token_type_embeddings.weight": (SEGMENTS, WIDTH),
               "bert.pooler.dense.weight": (WIDTH, WIDTH), "bert.pooler.dense.bias": (WIDTH,)}
        dense = {"attention.self.query": (WIDTH, WIDTH), "attention.self.key": (WIDTH, WIDTH),
                 "attention.self.value": (WIDTH, WIDTH), "attention.output.dense": (WIDTH, WIDTH),
                 "intermediate.dense": (FFN, WIDTH), "output.dense": (WIDTH, FFN)}
        norms = ["bert.embeddings.LayerNorm"]
        for layer in range(LAYERS):
            prefix = f"bert.encoder.layer.{layer}."
            for name, (rows, columns) in dense.items():
                out |= {f"{prefix}{name}.weight": (rows, columns), f"{prefix}{name}.bias": (rows,)}
            norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
        return out | {f"{norm}.{part}": (WIDTH,) for norm in norms for part in ("weight", "bias")}
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    out = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    if not config(family)["tie_word_embeddings"]:
        out["lm_head.weight"] = (VOCAB, WIDTH)
    for layer in range(LAYERS):
        block = {"input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,),
                 "self_attn.q_proj.weight": (q, WIDTH), "self_attn.k_proj.weight": (kv, WIDTH),
                 "self_attn.v_proj.weight": (kv, WIDTH), "self_attn.o_proj.weight": (WIDTH, q),
                 "mlp.gate_proj.weight": (FFN, WIDTH), "mlp.up_proj.weight": (FFN, WIDTH), "mlp.down_proj.weight": (WIDTH, FFN)}
        if family == "qwen2":
            block |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
        if family == "qwen3":
            block |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
        out |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return out


def tensors(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, large enough that attention is not flat, embeddings small enough that the norms' eps matters."""
    random = np.random.default_rng([seed, FAMILIES.index(family)])
    out = {}
    for name, shape in shapes(family).items():
        value = random.standard_normal(shape)
        if "norm" in name.lower() and name.endswith("weight"):
            value = 1 + 0.2 * value
        elif len(shape) == 1:
            value = 0.2 * value
        elif "embed" in name:
            value = 0.1 * value
        else:
            value = 1.5 * value / np.sqrt(shape[1])
        out[name] = value.astype(np.float32)
    if family == "bert":
        out["bert.embeddings.position_ids"] = np.arange(POSITIONS)[None]
    return out


def write(folder: Path, family: str, *, tokenizer: str = "", bare: bool = False, files: int = 1, dtype: str = "float32",
          changes: dict | None = None, weights: dict[str, np.ndarray] | None = None) -> Path:
    """Writes a model folder and returns it.

    `tokenizer` is a kind of `make_tokenizer`; `bare` leaves out the family's prefix as AutoModel does; `files`
    spreads the tensors; `changes` to the config, a None removes its key; `weights` instead of `tensors(family)`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in (config(family) | (changes or {})).items() if v is not None or k == "sliding_window"}
    (folder / "config.json").write_text(json.dumps(settings))
    kind = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    weights = tensors(family) if weights is None else weights
    weights = {n: x.astype(kind) if x.dtype == np.float32 else x for n, x in weights.items()}
    if bare:
        weights = {n.removeprefix("model.").removeprefix("bert."): x for n, x in weights.items()}
    names = sorted(weights)
    for i in range(files):
        name = "model.safetensors" if files == 1 else f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        save_file({n: weights[n] for n in names[i::files]}, folder / name, metadata={"format": "pt"})
    if files > 1:
        index = {n: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, n in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    if tokenizer:
        make_tokenizer(folder, tokenizer)
    return folder


def make_tokenizer(folder: Path, kind: str) -> None:
    """Trains a tokenizer of at most `VOCAB` entries on the embedded corpus.

    cls: word pieces, lower case, `[CLS] text [SEP]`, like BERT's.   plain: byte pairs, adds nothing and has no
    begin token, like Qwen's.   begin: adds `<s>` in front, has no pad token, like Llama's.   end: adds
    `<|end|>`, its pad token but not its stop token, like Qwen3-Embedding's.   chat: plain with a chat template.
    """
    with DOCUMENTS.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:2000] for line in file][:4]
    if kind == "cls":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        backend = tks.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False)
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                               special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    else:
        backend = tks.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[BEGIN, STOP, END], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        if kind in ("begin", "end"):
            single, token = {"begin": (f"{BEGIN} $A", (BEGIN, 0)), "end": (f"$A {END}", (END, 2))}[kind]
            backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=[token])
        roles = {"eos_token": STOP} | {"begin": {"bos_token": BEGIN}}.get(kind, {"pad_token": END})
    backend.train_from_iterator(texts, trainer)
    backend.save(str(folder / "tokenizer.json"))
    roles |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS}
    roles |= {"chat_template": TEMPLATE} if kind == "chat" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))


def sentence_transformer(folder: Path, *, pooling: str, max_seq_length: int | None = None, prompts: dict | None = None) -> Path:
    """Adds what makes a model folder a sentence-transformers folder, in the keys of its version 2 to 5."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)]))
    (folder / "1_Pooling").mkdir()
    key = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken", "max": "max_tokens"}[pooling]
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": WIDTH, f"pooling_mode_{key}": True}))
    (folder / "2_Normalize").mkdir()
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_seq_length, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}, "default_prompt_name": None}))
    return folder
