"""What the export stages share: they copy a trained model and describe it in a model card."""

import json
import shutil
from pathlib import Path


def base_names(path: str) -> tuple[str, str]:
    """A model's short name, and its hub name; that of a local folder is empty."""
    local = Path(path).expanduser().exists()
    return (Path(path).name, "") if local else (path, path)


def copy_files(source: Path, target: Path) -> None:
    """Copies the files of a folder, with their subfolders."""
    # `shutil.copytree` reports a full disk as an error of its own kind.
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def copy_model(source: Path, target: Path, base: str, dtype: str) -> None:
    """Copies a trained model's folder, with weights in `dtype`; empty: in the types of its base.

    Args:
        base: folder or hub name of the model that training began with.
    """
    from ark_jax.models import hf, pair_folder

    copy_files(source, target)
    weights = pair_folder.weights_folder(hf.resolve(base))
    for config in sorted(target.rglob("config.json")):
        if "model_type" in hf.read_json(config):  # not a module of sentence-transformers
            hf.cast_weights(config.parent, weights, dtype)


def settings_text(config, *sections: str) -> str:
    """The values of some config sections as a line of a model card."""
    values = {name: value for section in sections for name, value in config[section].items()}
    return f"Training settings: `{json.dumps(values, default=list)}`."


def describe_card(card: Path, title: str, description: str) -> None:
    """Gives the card of a pair scorer another title, and a text in front of how it is opened."""
    from ark_jax.models.model_card import plain_line

    front, _, body = card.read_text(encoding="utf-8").partition("\n# ")
    _, _, body = body.partition("\n")
    card.write_text(f"{front}\n# {plain_line(title)}\n\n{description}\n{body}", encoding="utf-8")
