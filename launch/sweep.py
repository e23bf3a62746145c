"""`ark-jax sweep`, for a checkout that is not installed: python launch/sweep.py --config=..."""

import sys

from ark_jax.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "sweep")
    main()
