"""`ark-jax onnx`: a retriever for programs that have neither jax nor torch."""

import tempfile
from pathlib import Path

from ark_jax import integrations
from ark_jax.cli.flags import Flags, flag
from ark_jax.cli.process import message_with_fix, prepare_environment
from ark_jax.runtime import log
from ark_jax.runtime.storage import local_path


class Onnx(Flags):
    """Writes a copy of a retriever, with an ONNX file in it."""

    model: str = flag(
        "MODEL", "folder or hub name of a retriever: BERT, RoBERTa, XLM-R or DistilBERT"
    )
    out: str = flag("--out=DIR", "a folder like the export of a run, with onnx/model.onnx in it")
    int8: bool = flag(
        "--int8", "also writes onnx/model_int8.onnx, which is faster; needs .[onnx]", False
    )
    data: str = flag(
        "--data=TEST",
        "documents and questions, as `ark-jax evaluate` reads them: says what int8 costs there",
        "",
    )

    example = "ark-jax onnx ark_demo/export --out=my_model --int8 --data=my_test/"
    prints = False

    def run(self) -> int:
        prepare_environment()
        adapter = integrations.load("onnx")
        from ark_jax.models.retriever import Retriever

        folder = local_path(self.out)
        retriever = Retriever.from_pretrained(self.model)
        try:
            adapter.save_onnx(retriever, folder, int8=self.int8 or bool(self.data))
        except OSError as error:
            raise OSError(message_with_fix(error, folder, flag="--out")) from error
        log.say(f"{Path(self.out) / adapter.FILE}")
        if self.data:
            self._compare(folder)
        return 0

    def _compare(self, folder: Path) -> None:
        """Says how int8 ranks the passages of --data, and how far its cosines are off."""
        import numpy as np

        from ark_jax.comparison.comparison import compare, text_of
        from ark_jax.index.index import Index

        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary) / "int8"
            int8 = Index.build(place, folder, self.data, engine="onnx-int8")
            comparison = compare([self.model, str(place)], self.data, metrics=["ndcg@10"])
            log.show(text_of(comparison))
            asked, exact = [row.question for row in comparison.asked], int8.with_model(self.model)
            pairs = zip(int8.embed(asked, "query"), exact.embed(asked, "query"), strict=True)
            largest = max(np.abs(int8.vectors @ x - exact.vectors @ y).max() for x, y in pairs)
        log.say(f"the largest difference of a cosine of a question and a passage: {largest:.3f}")
