"""The commands of ``duogp``, one module each. They need typer and rich, and only `duogp.cli` imports them."""
