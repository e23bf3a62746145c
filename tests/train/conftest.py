"""A short run that tests stop and damage, and the peers that losses are compared with."""

import pytest
from support import tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder of a tiny retriever."""
    folder = tiny.write(tmp_path_factory.mktemp("bert"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(folder, pooling="mean", max_seq_length=32)


@pytest.fixture(scope="module")
def uninterrupted(base, tmp_path_factory):
    """Folder of a short run that nothing stopped."""
    from support import short_run

    folder = tmp_path_factory.mktemp("uninterrupted")
    short_run.train(base, folder)
    return folder


@pytest.fixture
def at_step(monkeypatch):
    """`at_step(step, action)` runs an action when the devices have been given that step."""
    from ark_jax.train import fit

    train_step = fit.train_step

    def set_action(step: int, action) -> None:
        def step_and_act(*args):
            state, metrics = train_step(*args)
            if args[-1] + 1 == step:
                action()
            return state, metrics

        monkeypatch.setattr(fit, "train_step", step_and_act)

    yield set_action
    monkeypatch.setattr(fit, "train_step", train_step)


@pytest.fixture
def sentence_transformers_losses():
    """torch and the losses of sentence-transformers."""
    hint = "the reference implementation is missing: pip install 'ark-jax[reference]'"
    torch = pytest.importorskip("torch", reason=hint)
    module = "sentence_transformers.sentence_transformer.losses"
    return torch, pytest.importorskip(module, reason=hint)
