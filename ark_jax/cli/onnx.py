"""`ark-jax onnx`: a retriever for programs that have neither jax nor torch."""

from pathlib import Path

from ark_jax import integrations
from ark_jax.cli.flags import Flags, flag
from ark_jax.cli.process import message_with_fix, prepare_environment
from ark_jax.runtime.log import say
from ark_jax.runtime.storage import local_path


class Onnx(Flags):
    """Writes a copy of a retriever, with an ONNX file in it."""

    model: str = flag(
        "MODEL", "folder or hub name of a retriever: BERT, RoBERTa, XLM-R or DistilBERT"
    )
    out: str = flag("--out=DIR", "a folder like the export of a run, with onnx/model.onnx in it")

    example = "ark-jax onnx ark_demo/export --out=my_model"
    prints = False

    def run(self) -> int:
        prepare_environment()
        adapter = integrations.load("onnx")
        from ark_jax.models.retriever import Retriever

        folder = local_path(self.out)
        retriever = Retriever.from_pretrained(self.model)
        try:
            adapter.save_onnx(retriever, folder)
        except OSError as error:
            raise OSError(message_with_fix(error, folder, flag="--out")) from error
        say(f"{Path(self.out) / adapter.FILE}")
        return 0
