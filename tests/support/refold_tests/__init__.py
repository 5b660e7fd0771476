"""Helpers that tests share. pyproject.toml explains why the package is in this folder and how it is found."""
