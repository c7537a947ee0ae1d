"""``python -m parallel_r1``: the same as ``parallel-r1``."""

from parallel_r1.cli import main

main()
