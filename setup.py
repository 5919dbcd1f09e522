"""Say what pyproject.toml cannot.

`configs`, beside the package in a clone, is `gpt/recipes` in a wheel. What `make web` installs is
in no wheel.
"""

from setuptools import find_namespace_packages, setup

packages = find_namespace_packages(
    include=["gpt", "gpt.*"], exclude=["gpt.extras.web.node_modules*"]
)
setup(packages=[*packages, "gpt.recipes"], package_dir={"gpt.recipes": "configs"})
