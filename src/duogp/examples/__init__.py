"""What `python -m duogp.demo` shows: a tour of the command line, and a comparison of two methods."""
