#!/usr/bin/env python3
"""Names and parameters of functions in a wheel's sources, read without importing them.

usage: signatures.py WHEEL     writes the [vllm.uses] tables of versions.toml for that wheel
"""
import ast
import os
import sys
import textwrap
import zipfile

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parameters(function):
    """The names of a function's parameters, starred as they are declared."""
    a = function.args
    names = [argument.arg for argument in (*a.posonlyargs, *a.args)]
    if a.vararg:
        names.append("*" + a.vararg.arg)
    elif a.kwonlyargs:
        names.append("*")
    names += [argument.arg for argument in a.kwonlyargs]
    return names + (["**" + a.kwarg.arg] if a.kwarg else [])


def members(body, prefix=""):
    """Of a module's or a class's body: functions by their parameters, other names by None."""
    found = {}
    for node in body:
        if isinstance(node, FUNCTIONS):
            found[prefix + node.name] = parameters(node)
        elif isinstance(node, ast.ClassDef):
            found[prefix + node.name] = None
            found.update(members(node.body, f"{prefix}{node.name}."))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[prefix + node.target.id] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and not prefix:
            found.update({alias.asname or alias.name: None for alias in node.names})
        elif isinstance(node, ast.Assign):
            found.update({prefix + target.id: None for target in node.targets
                          if isinstance(target, ast.Name)})
    return found


def in_wheel(wheel, path):
    """What the module at path in the wheel defines, as of `members`."""
    with zipfile.ZipFile(wheel) as archive:
        return members(ast.parse(archive.read(path), path).body)


def version_of(wheel):
    return os.path.basename(wheel).split("-")[1]


def main():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import versions

    wheel = sys.argv[1]
    print(f'versions = ["{version_of(wheel)}"]')
    for path, names in versions.table("vllm")["uses"].items():
        found = in_wheel(wheel, path)
        print(f'\n[vllm.uses."{path}"]')
        for name in names:
            listed = found.get(name, "missing")
            words = '"a name"' if listed is None else str(listed).replace("'", '"')
            print("\n  ".join(textwrap.wrap(f'"{name}" = {words}', 98)))


if __name__ == "__main__":
    main()
