"""Tests; a package so that helpers import by one name under pytest, mypy and pyright."""
