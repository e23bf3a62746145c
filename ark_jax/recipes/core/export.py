"""What the export stages share: they copy a trained model and describe it in a model card."""

import json
import shutil
from pathlib import Path


def base_names(path: str) -> tuple[str, str]:
    """What a model is called, and its hub name; a local folder has none."""
    local = Path(path).expanduser().exists()
    return (Path(path).name, "") if local else (path, path)


def copy_files(source: Path, target: Path) -> None:
    """Copies a folder."""
    # `shutil.copytree` would hide a full disk in an error of its own.
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def settings_text(config, *sections: str) -> str:
    """The settings of training, as a card's last line."""
    values = {name: value for section in sections for name, value in config[section].items()}
    return f"Training settings: `{json.dumps(values, default=list)}`."


def describe_card(card: Path, title: str, description: str) -> None:
    """Gives the card of a pair scorer another title, and a text in front of how it is opened."""
    from ark_jax.models.model_card import plain_line

    front, _, body = card.read_text(encoding="utf-8").partition("\n# ")
    _, _, body = body.partition("\n")
    card.write_text(f"{front}\n# {plain_line(title)}\n\n{description}\n{body}", encoding="utf-8")
