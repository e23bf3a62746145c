"""Where the repository and the real data lie."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("ARK_DATA", REPOSITORY.parent / "shared" / "data"))
