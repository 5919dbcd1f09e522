"""Say what pyproject.toml cannot: `configs`, beside the package in a clone, is `gpt/recipes` in a wheel."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["gpt", "gpt.*"]), "gpt.recipes"], package_dir={"gpt.recipes": "configs"}
)
