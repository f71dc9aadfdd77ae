"""The binding against the headers: it is what the generator makes, and what a compiler sees."""
import ctypes
import importlib.util
import os
import subprocess

from package import ROOT, Scratch
from tap import case, check, run, same

from onehop import _abi, _library


def generator():
    spec = importlib.util.spec_from_file_location(
        "python_abi", os.path.join(ROOT, "scripts", "python_abi.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(lines):
    """The output of a C program whose main has these lines, by words."""
    text = ("#include <onehop/onehop.h>\n#include <stddef.h>\n#include <stdio.h>\n"
            "#define LL(x) ((long long)(x))\nint main(void) {\n" + "\n".join(lines) + "\n}\n")
    with Scratch() as folder:
        source, program = os.path.join(folder, "p.c"), os.path.join(folder, "p")
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run([*generator().compiler(), "-I", os.path.join(ROOT, "include"), "-o", program,
                        source], check=True)
        out = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(line.split() for line in out.splitlines())


@case
def the_committed_binding_is_what_the_generator_makes():
    with open(os.path.join(ROOT, "python", "onehop", "_abi.py"), encoding="utf-8") as file:
        check(file.read() == generator().render(), "_abi.py: run scripts/python_abi.py")


@case
def structs_have_the_compilers_sizes_and_offsets():
    lines = []
    for name, struct in _abi.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in struct._fields_:
            place = f"offsetof(struct {name}, {field[0]})"
            size = f"sizeof(((struct {name} *)0)->{field[0]})"
            lines.append(f'printf("{name}.{field[0]} %zu+%zu\\n", {place}, {size});')
    seen = compiled(lines)
    check(len(seen) > 100, "hardly any struct was read from the headers")
    for name, struct in _abi.STRUCTS.items():
        same(ctypes.sizeof(struct), int(seen[name]), f"sizeof {name}")
        for field in struct._fields_:
            place = getattr(struct, field[0])
            same(f"{place.offset}+{place.size}", seen[f"{name}.{field[0]}"], f"{name}.{field[0]}")


@case
def enumerators_and_macros_have_the_compilers_values():
    made = generator()
    names = [name for _, members in made.enums(made.own_text()) for name, _ in members]
    names += made.macros()
    check(len(names) > 40, "hardly any enumerator was read from the headers")
    seen = compiled([f'printf("{name} %lld\\n", LL({name}));' for name in names])
    for name in names:
        value = getattr(_abi, name.removeprefix("ONEHOP_"))
        same(value, int(seen[name]) % 2 ** 64 if value >= 2 ** 63 else int(seen[name]), name)


@case
def formats_are_as_long_as_their_structs():
    import struct

    for name, code in _abi.FORMATS.items():
        same(struct.calcsize(code), ctypes.sizeof(_abi.STRUCTS[name]), name)


@case
def every_exported_function_is_bound():
    library = _library.library()
    out = subprocess.run(["nm", "-D", "--defined-only", library._name], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in out.splitlines()}
    same(sorted(name for name in exported if name.startswith("onehop_")), sorted(_abi.FUNCTIONS))


if __name__ == "__main__":
    run()
