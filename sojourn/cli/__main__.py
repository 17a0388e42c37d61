"""`python -m sojourn.cli`, for where the script is not on the path."""

from . import main

main()
