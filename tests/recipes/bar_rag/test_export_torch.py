"""The exported reader in transformers."""

import jax
import numpy as np
import pytest

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.layout import make_mesh
from ark_jax.models.language import LanguageModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.slow
def test_the_exported_reader_gives_the_same_likelihoods_in_transformers(run):
    folder = run / "export"
    form = ReadingPrompt.read(folder)
    prompt = form.fill("Of what is the bell of Arl?", "The bell of Arl is of tin.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(prompt)["input_ids"]
    reply = tokenizer(" tin", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *reply]])).logits[0]
    theirs = torch.log_softmax(logits.double(), -1)[len(ids) - 1 : -1]
    wanted = [theirs[i, token].item() for i, token in enumerate(reply)]
    with jax.set_mesh(make_mesh((1, 1, 1))):
        lm = LanguageModel.from_pretrained(folder)
        assert lm.prompt_ids([prompt]).tolist() == [ids]
        (ours,) = lm.token_log_likelihood([ids], [reply])
    np.testing.assert_allclose(ours, wanted, atol=1e-4)
