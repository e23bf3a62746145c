"""Tiny checkpoints on disk as Hugging Face would write them, random but the same everywhere.

They are made without torch. Every number that a loader could forget differs from its default, and
every size from every other it could be mistaken for. Heads, key heads, width, ffn and vocabulary
divide by each mesh of the tests.
"""

import collections
import itertools
import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import tokenizers as tks
from safetensors.numpy import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import ark_jax

DECODERS = ("qwen3", "qwen2", "llama", "mistral")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")
FAMILIES = (*DECODERS, *ENCODERS)  # the weights are drawn by place: add at the end
PREFIX = dict.fromkeys(DECODERS, "model.") | {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "distilbert": "distilbert.",
}
VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, SEGMENTS = 304, 32, 2, 4, 2, 12, 48, 3
POSITIONS = 640
DOCUMENTS = Path(ark_jax.__file__).parent / "demo" / "documents.jsonl"
# The first ids of every tokenizer here. The retriever's end token is its pad token, as in
# Qwen3-Embedding. `<pad>` is in RoBERTa's vocabulary only.
BEGIN, STOP, END, PAD = "<s>", "</s>", "<|end|>", "<pad>"
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def config(family: str) -> dict:
    """A config.json; old and new spellings of the rotary settings both occur."""
    common = {
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
        "max_position_embeddings": POSITIONS,
    }
    if family == "bert":
        return common | {
            "architectures": ["BertModel"],
            "type_vocab_size": SEGMENTS,
            "layer_norm_eps": 3e-5,
            "hidden_act": "gelu",
            "pad_token_id": 0,
        }
    if family == "distilbert":
        # The eps and the activation under these names are read by nobody, and sinusoids are only
        # how training began.
        return {
            "model_type": family,
            "architectures": ["DistilBertForMaskedLM"],
            "vocab_size": VOCAB,
            "dim": WIDTH,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": FFN,
            "max_position_embeddings": POSITIONS,
            "pad_token_id": 0,
            "activation": "gelu",
            "hidden_act": "relu",
            "sinusoidal_pos_embds": True,
            "layer_norm_eps": 3e-2,
        }
    if family in ENCODERS:
        name, segments, pad = {
            "roberta": ("RobertaForMaskedLM", 1, 3),
            "xlm-roberta": ("XLMRobertaModel", SEGMENTS, 5),
        }[family]
        return common | {
            "architectures": [name],
            "type_vocab_size": segments,
            "layer_norm_eps": 3e-5,
            "hidden_act": "gelu",
            "pad_token_id": pad,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
    common |= {
        "architectures": [
            {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral"}[family]
            + "ForCausalLM"
        ],
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 3e-5,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    return (
        common
        | {
            "qwen3": {
                "rope_theta": 12345.0,
                "tie_word_embeddings": True,
                "attention_bias": False,
                "use_sliding_window": False,
                "sliding_window": 4,
            },
            "qwen2": {
                "rope_theta": 12345.0,
                "tie_word_embeddings": False,
                "use_sliding_window": False,
                "sliding_window": 4,
            },
            # One of the six frequencies is kept, one interpolated, four slowed.
            "llama": {
                "rope_theta": 12345.0,
                "tie_word_embeddings": False,
                "attention_bias": False,
                "mlp_bias": False,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 4.0,
                    "low_freq_factor": 1.5,
                    "high_freq_factor": 3.0,
                    "original_max_position_embeddings": 64,
                },
            },
            "mistral": {
                "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0},
                "tie_word_embeddings": True,
                "sliding_window": None,
            },
        }[family]
    )


def shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a family's published checkpoints."""
    if family in ENCODERS:
        return _encoder_shapes(family)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    out = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    if not config(family)["tie_word_embeddings"]:
        out["lm_head.weight"] = (VOCAB, WIDTH)
    for layer in range(LAYERS):
        block = {
            "input_layernorm.weight": (WIDTH,),
            "post_attention_layernorm.weight": (WIDTH,),
            "self_attn.q_proj.weight": (q, WIDTH),
            "self_attn.k_proj.weight": (kv, WIDTH),
            "self_attn.v_proj.weight": (kv, WIDTH),
            "self_attn.o_proj.weight": (WIDTH, q),
            "mlp.gate_proj.weight": (FFN, WIDTH),
            "mlp.up_proj.weight": (FFN, WIDTH),
            "mlp.down_proj.weight": (WIDTH, FFN),
        }
        if family == "qwen2":
            block |= {
                "self_attn.q_proj.bias": (q,),
                "self_attn.k_proj.bias": (kv,),
                "self_attn.v_proj.bias": (kv,),
            }
        if family == "qwen3":
            block |= {
                "self_attn.q_norm.weight": (HEAD_DIM,),
                "self_attn.k_norm.weight": (HEAD_DIM,),
            }
        out |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return out


def _encoder_shapes(family: str) -> dict[str, tuple[int, ...]]:
    """With the pooler, or the head for masked words, that a family is published with."""
    prefix, square = PREFIX[family], (WIDTH, WIDTH)
    out = {
        f"{prefix}embeddings.word_embeddings.weight": (VOCAB, WIDTH),
        f"{prefix}embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
    }
    if family == "distilbert":
        layer, norms = "transformer.layer", ("sa_layer_norm", "output_layer_norm")
        linear = (
            "attention.q_lin",
            "attention.k_lin",
            "attention.v_lin",
            "attention.out_lin",
            "ffn.lin1",
            "ffn.lin2",
        )
        pairs = {
            "vocab_transform": square,
            "vocab_layer_norm": (WIDTH,),
            "vocab_projector": (VOCAB, WIDTH),
        }
    else:
        layer, norms = "encoder.layer", ("attention.output.LayerNorm", "output.LayerNorm")
        linear = (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        )
        out[f"{prefix}embeddings.token_type_embeddings.weight"] = (
            config(family)["type_vocab_size"],
            WIDTH,
        )
        pairs = {f"{prefix}pooler.dense": square}
    if family == "roberta":
        out["lm_head.bias"] = (VOCAB,)
        pairs = {
            "lm_head.dense": square,
            "lm_head.layer_norm": (WIDTH,),
            "lm_head.decoder": (VOCAB, WIDTH),
        }
    for i in range(LAYERS):
        pairs |= {
            f"{prefix}{layer}.{i}.{name}": shape
            for name, shape in zip(linear, (*[square] * 4, (FFN, WIDTH), (WIDTH, FFN)), strict=True)
        }
    pairs[f"{prefix}embeddings.LayerNorm"] = (WIDTH,)
    pairs |= {f"{prefix}{layer}.{i}.{name}": (WIDTH,) for i in range(LAYERS) for name in norms}
    for name, shape in pairs.items():
        out |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return out


def tensors(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, so large that attention is not flat.

    Embeddings are so small that the eps of the norms matters.
    """
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
    if family in ("bert", "roberta", "distilbert"):
        out[f"{PREFIX[family]}embeddings.position_ids"] = np.arange(POSITIONS)[None]
    return out


def write(
    folder: Path,
    family: str,
    *,
    tokenizer: str = "",
    bare: bool = False,
    files: int = 1,
    dtype: str = "float32",
    changes: dict | None = None,
    weights: dict[str, np.ndarray] | None = None,
) -> Path:
    """Writes a model folder and returns it.

    `tokenizer` is a kind of `make_tokenizer`; `bare` leaves out the family's prefix as AutoModel
    does; `files` spreads the tensors; `changes` to the config, a None removes its key; `weights`
    instead of `tensors(family)`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        k: v
        for k, v in (config(family) | (changes or {})).items()
        if v is not None or k == "sliding_window"
    }
    (folder / "config.json").write_text(json.dumps(settings))
    kind = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    weights = tensors(family) if weights is None else weights
    weights = {n: x.astype(kind) if x.dtype == np.float32 else x for n, x in weights.items()}
    if bare:
        weights = {n.removeprefix(PREFIX[family]): x for n, x in weights.items()}
    names = sorted(weights)
    for i in range(files):
        name = (
            "model.safetensors" if files == 1 else f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        )
        save_file(
            {n: weights[n] for n in names[i::files]}, folder / name, metadata={"format": "pt"}
        )
    if files > 1:
        index = {
            n: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, n in enumerate(names)
        }
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index})
        )
    if tokenizer:
        make_tokenizer(folder, tokenizer)
    return folder


def make_tokenizer(folder: Path, kind: str) -> None:
    """A tokenizer of at most `VOCAB` entries, made from the embedded corpus, the same everywhere.

    cls: word pieces, lower case, `[CLS] text [SEP]`, like BERT's.
    plain: byte pairs, adds nothing and has no begin token, like Qwen's.
    begin: adds `<s>` in front, has no pad token, like Llama's.
    end: adds `<|end|>`, its pad token but not its stop token, like Qwen3-Embedding's.
    chat: plain with a chat template.
    both: `<s> text </s>` and a pad token of its own, like RoBERTa's; its limit leaves out the
        positions that pad takes.
    """
    with DOCUMENTS.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:2000] for line in file][:4]
    if kind == "cls":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        # Not by its trainer, which breaks ties by a hash that each process draws anew.
        words = collections.Counter(
            word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())
        )
        parts = collections.Counter()
        for word, n in words.items():
            for i, j in itertools.combinations(range(len(word) + 1), 2):
                parts["##" * bool(i) + word[i:j]] += n * (j - i)
        single = sorted(part for part in parts if len(part.removeprefix("##")) == 1)
        common = sorted(parts.keys() - set(single), key=lambda part: (-parts[part], part))
        pieces = [*special, *single, *common][:VOCAB]
        backend = tks.Tokenizer(
            models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
        )
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
        roles = dict(
            zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True)
        )
    else:
        backend = tks.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        special = [BEGIN, STOP, END, *([PAD] if kind == "both" else [])]
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        if kind in ("begin", "end", "both"):
            single = {"begin": f"{BEGIN} $A", "end": f"$A {END}", "both": f"{BEGIN} $A {STOP}"}[
                kind
            ]
            tokens = [(token, i) for i, token in enumerate(special) if token in single]
            backend.post_processor = processors.TemplateProcessing(
                single=single, special_tokens=tokens
            )
        backend.train_from_iterator(texts, trainer)
        roles = {"eos_token": STOP} | {
            "begin": {"bos_token": BEGIN},
            "both": {"bos_token": BEGIN, "cls_token": BEGIN, "sep_token": STOP, "pad_token": PAD},
        }.get(kind, {"pad_token": END})
    backend.save(str(folder / "tokenizer.json"))
    roles |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS - (4 if kind == "both" else 0),
    }
    roles |= {"chat_template": TEMPLATE} if kind == "chat" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))


def retrievers(root: Path, *names: str) -> Path:
    """Writes retrievers of these names, which differ in their weights, into `root`; returns it."""
    for seed, name in enumerate(names):
        folder = write(root / name, "bert", tokenizer="cls", weights=tensors("bert", seed))
        sentence_transformer(folder, pooling="mean", max_seq_length=48)
    return root


def sentence_transformer(
    folder: Path, *, pooling: str, max_seq_length: int | None = None, prompts: dict | None = None
) -> Path:
    """Makes a model folder one of sentence-transformers, in the keys of its versions 2 to 5."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {
                    "idx": i,
                    "name": str(i),
                    "path": path,
                    "type": f"sentence_transformers.models.{kind}",
                }
                for i, (path, kind) in enumerate(modules)
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    key = {
        "mean": "mean_tokens",
        "cls": "cls_token",
        "lasttoken": "lasttoken",
        "max": "max_tokens",
    }[pooling]
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": WIDTH, f"pooling_mode_{key}": True})
    )
    (folder / "2_Normalize").mkdir()
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": max_seq_length, "do_lower_case": False})
    )
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts or {}, "default_prompt_name": None})
    )
    return folder


def multi_vector(root: Path, *names: str) -> Path:
    """As `retrievers`, but each token of a text has a vector.

    The ordinary retrievers with the same weights lie in `root / "pooled"`.
    """
    import jax

    from ark_jax import layout
    from ark_jax.models.multi_vector import MultiVectorRetriever

    pooled = retrievers(root / "pooled", *names)
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        for name in names:
            MultiVectorRetriever.from_pretrained(pooled / name).save_pretrained(root / name)
    return root
