"""versions.toml, read."""
import os

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "versions.toml")


def tables():
    """The whole file, or ImportError where this Python is too old to read it."""
    import tomllib

    with open(PATH, "rb") as file:
        return tomllib.load(file)


def table(package):
    return tables()[package]
