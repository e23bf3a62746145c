"""What is installed by others: actions and images by hash, packages by version."""

import re

import pytest
from packaging.requirements import Requirement
from support.paths import REPOSITORY

PINS = dict(
    line.split("==")
    for line in (REPOSITORY / ".github/constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
SETUP = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
# Plugins for devices, which only their machines install.
FREE = ("jax[", "nvidia-")


def test_actions_and_images_are_named_by_hash():
    files = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
    used = [line for file in files for line in re.findall("uses: (.*)", file.read_text())]
    assert used and [x for x in used if not re.fullmatch(r"\S+@[0-9a-f]{40}  # v[\d.]+", x)] == []
    images = re.findall("^FROM (.*)", (REPOSITORY / "launch/Dockerfile").read_text(), re.M)
    assert images and [x for x in images if not re.search("@sha256:[0-9a-f]{64}$", x)] == []


@pytest.mark.parametrize(
    "text", sorted(set(re.findall(r'^ +.*?"([\w.\[\]-]+[><=][^"]*)"', SETUP, re.M)))
)
def test_each_requirement_has_a_pin_that_fits(text):
    if text.startswith(FREE) or text.startswith("python"):
        return
    needed = Requirement(text)
    assert needed.specifier.contains(PINS[re.sub(r"[-_.]+", "-", needed.name).lower()])
