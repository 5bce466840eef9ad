"""``python -m densing``."""

from densing.cli import main

if __name__ == "__main__":
    main()
