"""What test modules share: random models, dense algebra, tables. Test modules do not import each other."""
