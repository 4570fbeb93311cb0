"""From source text to IR: parse, then elaborate."""
