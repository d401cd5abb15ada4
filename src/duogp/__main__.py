"""``python -m duogp``: the ``duogp`` command, for torchrun -m duogp and where no script is installed."""

from duogp.cli import main

if __name__ == "__main__":
    main()
