"""`ark-jax evaluate`: retrievers, BM25 and both fused on a test set, without a run."""

import json

from ark_jax.cli import runs
from ark_jax.cli.arguments import Parser, at_least_one
from ark_jax.cli.environment import log_on_stderr, prepare_environment
from ark_jax.cli.errors import with_fix
from ark_jax.cli.search import check_endpoint, reader_of
from ark_jax.runtime import log, storage


def evaluate(verb: str, args: list[str]) -> int:
    """Prints a table of systems by metrics. With a config it is the stage of a run."""
    if any(arg.lstrip("-").partition("=")[0] in ("config", "workdir") for arg in args):
        return runs.pipeline(verb, args)
    parser = Parser(verb)
    for name in ("models", "data"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("corpus", "reference", "out", "metrics", "reader", "endpoint"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--scope", choices=("auto", "documents", "asked", "corpus"), default="auto")
    parser.add_argument("--chunk-tokens", type=at_least_one, default=0)
    parser.add_argument("--json", action="store_true")
    values = parser.values(args)
    check_endpoint(parser, values)
    prepare_environment()
    from ark_jax.compare import output
    from ark_jax.compare.comparison import RETRIEVAL, compare
    from ark_jax.retrieval.chunks import ChunkRules

    out = storage.local_path(values.out) if values.out else None
    with log_on_stderr():
        try:
            comparison = compare(
                _words(values.models),
                values.data,
                corpus=values.corpus,
                folder=out and out / "index",
                reference=values.reference,
                metrics=_words(values.metrics) or RETRIEVAL,
                scope=values.scope,
                rules=ChunkRules(tokens=values.chunk_tokens),
                write=reader_of(values).write if values.reader else None,
            )
            if out:
                out.mkdir(parents=True, exist_ok=True)
                log.say(f"  {output.save(comparison, out)}")
        except OSError as error:
            folder = out or storage.cache_folder()
            raise OSError(with_fix(error, folder, flag="--out")) from error
    if values.json:
        log.show(json.dumps(output.json_of(comparison), ensure_ascii=False) + "\n")
    else:
        log.show(output.text_of(comparison))
    return 0


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []
