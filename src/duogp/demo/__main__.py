"""`python -m duogp.demo`: the demonstration of `make demo`."""

from duogp.demo import main

if __name__ == "__main__":
    main()
