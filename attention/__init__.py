"""Tiles, plans and the pooled attention operator. Importing this loads no torch."""
