"""A small engine behind the forms of vLLM and SGLang, which really runs a `LanguageModel`.

It serves the folder that it is started with, opens it again on request, and fails on demand.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import numpy as np

from ark_jax import layout
from ark_jax.models.language import LanguageModel
from ark_jax.models.rollout import Rollouts

COMPLETE, GENERATE = "/v1/completions", "/generate"
RELOADS = ("/collective_rpc", "/update_weights_from_disk")
RESET = "/reset_prefix_cache?reset_running_requests=true"
NO_FAULT = lambda path, number: None


class RolloutServer:
    """An engine.

    Args:
        folder: of the model that it serves.
        draws: seed of a request -> the seed and place with which a run draws the same replies
            itself; a request with another seed draws by that.
        faults: (path, how many requests have come there) -> a status, another answer, "hang" or
            None.
        forgets: whether it says that it has read its folder again, and has not.
        change: changes an answer before it is sent.
    """

    def __init__(
        self,
        folder: Path,
        *,
        draws: Mapping[int, tuple[int, tuple]] | None = None,
        faults: Callable[[str, int], int | str | dict | None] = NO_FAULT,
        forgets: bool = False,
        change: Callable[[object], object] = lambda answer: answer,
    ):
        self.folder, self.draws, self.faults = folder, draws or {}, faults
        self.forgets, self.change = forgets, change
        self.requests: list[tuple[str, dict]] = []
        self.url = ""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._model: LanguageModel | None = None

    def count(self, *paths: str) -> int:
        """The number of requests that have come to these paths."""
        return sum(path in paths for path, _ in list(self.requests))

    def answer(self, path: str, body: dict) -> tuple[int, object]:
        """Status and JSON of an answer."""
        fault = self.faults(path, self.count(path))
        self.requests.append((path, body))
        if fault == "hang":
            self._ending.wait(60)
        elif isinstance(fault, dict):
            return 200, fault
        elif fault:
            return fault, {"error": {"message": f"the fault {fault} was asked for"}}
        # A thread has a mesh of its own; the model runs one request after the other.
        with self._lock, jax.set_mesh(layout.make_mesh((1, 1, 1))):
            if path in RELOADS:
                return self._reload(body)
            if path in (COMPLETE, GENERATE):
                answer = self._completion(body) if path == COMPLETE else self._generation(body)
                return 200, self.change(answer)
        if path == RESET:
            return 200, {"success": True}
        return 404, {"error": {"message": "Not Found"}}

    def _reload(self, body: dict) -> tuple[int, object]:
        asked = Path(body.get("model_path", self.folder))
        if body.get("method", "reload_weights") != "reload_weights" or asked != self.folder:
            return 400, {"success": False, "message": f"cannot load {asked}"}
        if self._model is None or not self.forgets:
            self._model = LanguageModel.from_pretrained(self.folder)
        return 200, {"success": True} if "model_path" in body else None

    def _sample(self, prompt: list[int], n: int, seed: int, **options) -> Rollouts:
        lm = self._model = self._model or LanguageModel.from_pretrained(self.folder)
        text = lm.tokenizer.decode(prompt)
        assert list(lm.prompt_ids([text])[0]) == prompt, text
        seed, place = self.draws.get(seed, (seed, (0,)))
        return lm.sample([text], n=n, seed=seed, places=np.array([place]), **options)

    def _completion(self, body: dict) -> dict:
        """The answer of vLLM."""
        assert body["model"] == str(self.folder) and body["top_k"] == -1
        rollouts = self._sample(
            body["prompt"],
            body["n"],
            body["seed"],
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body["top_p"],
        )
        assert tuple(body["stop_token_ids"]) == self._model.stop_ids
        choices = [
            {
                "index": i,
                "text": rollouts.texts[i],
                "finish_reason": "stop" if rollouts.ended[i] else "length",
                "logprobs": {"token_logprobs": rollouts.log_probs[i].tolist()}
                if "logprobs" in body
                else None,
            }
            | ({"token_ids": ids.tolist()} if body["return_token_ids"] else {})
            for i, ids in enumerate(rollouts.ids)
        ]
        return {"object": "text_completion", "choices": choices[::-1]}  # in any order

    def _generation(self, body: dict) -> list[dict]:
        """The answer of SGLang."""
        parameters, prompts = body["sampling_params"], body["input_ids"]
        seeds = [each["sampling_seed"] for each in parameters]
        assert len(set(seeds)) == len(prompts) == len(parameters) and body["return_logprob"]
        rollouts = self._sample(
            prompts[0],
            len(prompts),
            seeds[0],
            max_new_tokens=parameters[0]["max_new_tokens"],
            temperature=parameters[0]["temperature"],
            top_p=parameters[0]["top_p"],
        )
        return [
            {
                "text": rollouts.texts[i],
                "output_ids": ids.tolist(),
                "meta_info": {
                    "finish_reason": {"type": "stop" if rollouts.ended[i] else "length"},
                    "output_token_logprobs": [
                        [score, token, None]
                        for score, token in zip(
                            rollouts.log_probs[i].tolist(), ids.tolist(), strict=True
                        )
                    ],
                },
            }
            for i, ids in enumerate(rollouts.ids)
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator["RolloutServer"]:
        """The engine in a thread of this process, until the end of the block."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = server.answer(self.path, json.loads(sent))
                data = b"" if answer is None else json.dumps(answer).encode()
                with contextlib.suppress(ConnectionError):  # the client may have given up
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_) -> None:
                """Says nothing."""

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http.daemon_threads = True
        self.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            http.shutdown()
            http.server_close()
            thread.join(10)
