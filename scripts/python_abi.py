#!/usr/bin/env python3
"""Writes python/onehop/_abi.py from the public headers: structs, enums, constants, functions.

usage: python_abi.py [--check] [OUTPUT]

The C preprocessor ($CC, or cc) expands the headers' tables; what is left is a small part of C,
which is read here. --check compares instead of writing and exits with 1 if the file is not up to
date.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = os.path.join(ROOT, "include")
OUTPUT = os.path.join(ROOT, "python", "onehop", "_abi.py")

SCALARS = {
    "int8_t": ("c_int8", "b"), "uint8_t": ("c_uint8", "B"), "char": ("c_char", "c"),
    "int16_t": ("c_int16", "h"), "uint16_t": ("c_uint16", "H"),
    "int32_t": ("c_int32", "i"), "uint32_t": ("c_uint32", "I"), "onehop_status": ("c_int32", "i"),
    "int64_t": ("c_int64", "q"), "uint64_t": ("c_uint64", "Q"), "double": ("c_double", "d"),
}

HEAD = '''"""The C library's interface, made from its headers by scripts/python_abi.py: do not edit.

Structs are ctypes.Structure classes, named by what follows onehop_, in capitals and lower case;
enumerators and numeric macros are constants without ONEHOP_. Opaque handles are c_void_p. FORMATS
has the struct module's format of each struct that holds nothing but numbers and pointers, STATUSES
the table of status.h, and FUNCTIONS the result and arguments of each function.
"""
from __future__ import annotations

import ctypes
from ctypes import (POINTER, Structure, c_char, c_char_p, c_double, c_int32, c_int64, c_uint8,
                    c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any, Final

'''


def compiler():
    return os.environ.get("CC", "cc").split()


def preprocess(source, *flags):
    command = [*compiler(), "-E", "-std=c11", "-D_GNU_SOURCE", "-I", INCLUDE, *flags, "-xc", "-"]
    done = subprocess.run(command, input=source, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def own_text():
    """What our headers expand to; what comes from the system's is left out."""
    kept, ours = [], False
    for line in preprocess("#include <onehop/onehop.h>\n").splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = os.path.join("include", "onehop") in marker.group(1)
        elif ours:
            kept.append(line)
    text = " ".join(kept)
    return re.sub(r"__attribute__\s*\(\(.*?\)\)\)", "", re.sub(r"\s+", " ", text))


def number(text, names):
    """The value of a constant expression, None if it is no number."""
    text = re.sub(r"U?INT64_C\((\d+)\)", r"\1", text)
    text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
    known = {"UINT64_MAX": 2 ** 64 - 1, "UINT32_MAX": 2 ** 32 - 1, "INT64_MIN": -2 ** 63, **names}
    words = set(re.findall(r"\b[A-Za-z_]\w*", text))
    if not words <= set(known) or not re.fullmatch(r"[\w\s()+\-*<>|]+", text):
        return None
    return eval(text, {"__builtins__": {}}, known)


def macros():
    """Object-like numeric macros of ours, by name."""
    text = preprocess("#include <onehop/onehop.h>\n", "-dM")
    found = re.findall(r"^#define (ONEHOP_\w+) (\S.*)$", text, re.M)
    values = {name: number(value, {}) for name, value in found}
    return {name: value for name, value in sorted(values.items()) if value is not None}


def enums(text):
    """[(enum's name, [(enumerator, value)])]"""
    found = []
    for name, body in re.findall(r"enum (\w+) \{([^}]*)\}", text):
        members, following = [], 0
        for entry in filter(None, (part.strip() for part in body.split(","))):
            word, _, value = (part.strip() for part in entry.partition("="))
            following = number(value, dict(members)) if value else following
            members.append((word, following))
            following += 1
        found.append((name, members))
    return found


def structs(text):
    """[(struct's name, [(field, type, stars, array length or None)])]"""
    constants = macros()
    found = []
    for name, body in re.findall(r"struct (\w+) \{([^}]*)\}", text):
        fields = []
        for entry in filter(None, (part.strip() for part in body.split(";"))):
            entry = re.sub(r"\(\*(\w+)\)\(.*\)", r"*\1", entry)  # a function's address
            match = re.fullmatch(r"(.*?)\s*(\**)\s*(\w+)(?:\[(\w+)\])?", entry)
            kind = re.sub(r"\bconst\b|\s+", " ", match.group(1)).strip()
            stars = match.group(1).count("*") + len(match.group(2))
            length = match.group(4) and number(match.group(4), constants)
            fields.append((match.group(3), re.sub(r"[\s*]+$", "", kind), stars, length))
        found.append((name, fields))
    return found


def functions(text):
    """[(name, result, [argument])] as C spells the types, sorted by name."""
    declaration = r"(?:^|[;}])\s*((?:const )?[\w ]+?[\s*]+)(onehop_\w+)\(([^()]*)\)\s*(?=;)"
    found = re.findall(declaration, text)
    return sorted((name, result.strip(), [a.strip() for a in arguments.split(",")])
                  for result, name, arguments in found)


def class_name(struct):
    return "".join(word.capitalize() for word in struct.removeprefix("onehop_").split("_"))


def field_type(kind, stars, length):
    """ctypes' spelling of a field, and its format or None."""
    if stars:
        spelled, code = "c_void_p", "Q"
    elif kind.startswith("struct "):
        return class_name(kind.removeprefix("struct ")), None
    else:
        spelled, code = SCALARS[kind]
    if length is None:
        return spelled, code
    if code == "c":
        return f"{spelled} * {length}", f"{length}s"
    return f"{spelled} * {length}", f"{length}{code}"


def argument_type(text, known):
    """ctypes' spelling of an argument's or result's type; the argument's name is dropped."""
    text = re.sub(r"\bconst\b", " ", text)
    stars = text.count("*")
    words = text.replace("*", " ").split()
    kind = " ".join(words[:2]) if words[0] == "struct" else words[0]
    if kind == "void":
        return "c_void_p" if stars else "None"
    if kind == "char":
        return "c_char_p" if stars == 1 else "POINTER(c_char_p)"
    if kind.startswith("struct "):
        name = kind.removeprefix("struct ")
        spelled = f"POINTER({class_name(name)})" if name in known else "c_void_p"
        return spelled if stars == 1 else f"POINTER({spelled})"
    spelled = SCALARS[kind][0]
    return f"POINTER({spelled})" if stars else spelled


def statuses():
    source = ("#include <onehop/status.h>\n"
              "#define ROW(name, value, text, exception) @ name value text exception\n"
              "ONEHOP_STATUS_LIST(ROW)\n")
    text = " ".join(preprocess(source, "-P").split("\n"))
    rows = re.findall(r'@ (\w+) (\d+) "([^"]*)" "([^"]*)"', text)
    return [(int(value), name, words, exception) for name, value, words, exception in rows]


def padding(fields):
    """Whether natural alignment leaves holes; formats are written without any."""
    at = 0
    for _, kind, stars, length in fields:
        size = 8 if stars else {"c": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8,
                                "Q": 8, "d": 8}[SCALARS[kind][1]]
        if at % size:
            return True
        at += size * (length or 1)
    return at % 8 != 0


def render_structs(found):
    lines, formats = [], {}
    for name, fields in found:
        lines += ["", "", f"class {class_name(name)}(Structure):",
                  f'    """struct {name}"""', "", "    _fields_ = ["]
        spelled = [(field, *field_type(kind, stars, length))
                   for field, kind, stars, length in fields]
        lines += [f'        ("{field}", {text}),' for field, text, _ in spelled]
        lines += ["    ]"]
        flat = all(code for _, _, code in spelled)
        if flat and not padding(fields):
            formats[name] = "=" + "".join(code for _, _, code in spelled)
    return lines, formats


def render():
    text = own_text()
    found = structs(text)
    known = {name for name, _ in found}
    lines = [f"{name.removeprefix('ONEHOP_')}: Final = {value}" for name, value in macros().items()]
    for name, members in enums(text):
        lines += ["", f"# enum {name}"]
        lines += [f"{word.removeprefix('ONEHOP_')}: Final = {value}" for word, value in members]
    made, formats = render_structs(found)
    lines += made
    lines += ["", "", "FORMATS: Final[dict[str, str]] = {"]
    lines += [f'    "{name}": "{code}",' for name, code in formats.items()]
    lines += ["}", "", "# status: name, text, Python's exception",
              "STATUSES: Final[dict[int, tuple[str, str, str]]] = {"]
    lines += [f'    {value}: ("{name}", "{words}", "{exception}"),'
              for value, name, words, exception in statuses()]
    lines += ["}", "", "STRUCTS: Final[dict[str, type[Structure]]] = {"]
    lines += [f'    "{name}": {class_name(name)},' for name, _ in found]
    lines += ["}", "", "FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {"]
    for name, result, arguments in functions(text):
        types = [argument_type(a, known) for a in arguments if a != "void"]
        spelled = ", ".join(types) + ("," if len(types) == 1 else "")
        line = f'    "{name}": ({argument_type(result, known)}, ({spelled})),'
        if len(line) > 100:
            line = f'    "{name}":\n        ({argument_type(result, known)}, ({spelled})),'
        lines += [line]
    lines += ["}", "", "",
              "def bind(library: ctypes.CDLL) -> None:",
              '    """Gives every function of the library its result and argument types."""',
              "    for name, (result, arguments) in FUNCTIONS.items():",
              "        function = getattr(library, name)",
              "        function.restype = result",
              "        function.argtypes = arguments", ""]
    return HEAD + "\n".join(lines)


def main(arguments):
    check = "--check" in arguments
    paths = [a for a in arguments if a != "--check"]
    path = paths[0] if paths else OUTPUT
    made = render()
    if not check:
        with open(path, "w", encoding="utf-8") as file:
            file.write(made)
        return 0
    with open(path, encoding="utf-8") as file:
        if file.read() == made:
            return 0
    print(f"{path} does not agree with the headers; run scripts/python_abi.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
