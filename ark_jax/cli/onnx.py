"""`ark-jax onnx`: a retriever for programs that have neither jax nor torch."""

from pathlib import Path

from ark_jax import integrations
from ark_jax.cli.arguments import Parser
from ark_jax.cli.environment import prepare_environment
from ark_jax.cli.errors import with_fix
from ark_jax.runtime.log import say
from ark_jax.runtime.storage import local_path


def onnx(verb: str, args: list[str]) -> int:
    """Writes a copy of a retriever, with an ONNX file in it."""
    parser = Parser(verb)
    parser.add_argument("model")
    parser.add_argument("--out", required=True)
    values = parser.values(args)
    prepare_environment()
    adapter = integrations.load("onnx")
    from ark_jax.models.retriever import Retriever

    folder = local_path(values.out)
    retriever = Retriever.from_pretrained(values.model)
    try:
        adapter.save_onnx(retriever, folder)
    except OSError as error:
        raise OSError(with_fix(error, folder, flag="--out")) from error
    say(f"{Path(values.out) / adapter.FILE}")
    return 0
