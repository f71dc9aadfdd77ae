"""The code of docs/guide: every block of each page runs, and prints what the page says.

usage: test_guide.py [FOLDER of the look-alike driver]    all pages, each in a process of its own
       test_guide.py --page FILE                          one page, here

A page's blocks run in order, with one namespace, in a scratch folder that holds the models that the
pages name. What the word "python" of a block is followed by:

    no-run            it is compiled only: it needs a GPU, or what the tests do not install
    needs=NAME,NAME   it is compiled only where one of these modules is not installed
    file=NAME         it is written to that file of the folder

Of a block of type console the commands run that begin with `python -m`; a block of type text behind
a block of Python is what that prints. `...` stands for any text. Times and rates are not compared,
nor a report's reasons, nor anything where the pages' `device` is a GPU.
"""
import contextlib
import doctest
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import traceback

from package import ROOT, Scratch, environment, nbytes, need, safetensors
from tap import case, check, holds, run, same

GUIDE = os.path.join(ROOT, "docs", "guide")
PAGES = {"drop-in.md": ("torch", "safetensors"), "streaming.md": ("torch",),
         "tensor-parallel.md": ("torch",), "gguf.md": ("numpy",), "notebooks.md": ("torch",),
         "pipeline.md": ("torch",),
         "sensors.md": ("numpy",)}
"""What a page cannot do without."""

LIMIT_S = 300
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
MEASURED = re.compile(r"\b\d[\d.,]* (ns|us|ms|s|GB/s)(?!\w)")
MACHINES = re.compile(r"^(reasons|note|) {5,}.*\n", re.M)
"""Rows of a report that some machines give rise to."""
LIKENESS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# ---- models


def noise(dtype, shape):
    """Bytes of small numbers, the same each time."""
    count = nbytes(dtype, shape)
    if dtype != "BF16":
        return bytes(i * 7 % 120 for i in range(count))
    return b"".join(bytes((i * 37 % 256, 0xbc if i % 3 else 0x3c)) for i in range(count // 2))


def tensors(*rows):
    return [(name, "BF16", list(shape), noise("BF16", shape)) for name, shape in rows]


def layer(number):
    hidden, inner = 64, 128
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 2, hidden),
              "self_attn.v_proj": (hidden // 2, hidden), "self_attn.o_proj": (hidden, hidden),
              "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
              "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
              "post_attention_layernorm": (hidden,)}
    return [(f"model.layers.{number}.{name}.weight", shape) for name, shape in shapes.items()]


def llama(folder):
    """A Llama of two layers in two shards, with an index and a configuration."""
    os.makedirs(folder)
    shards = [[("model.embed_tokens.weight", (256, 64)), *layer(0)],
              [*layer(1), ("model.norm.weight", (64,)), ("lm_head.weight", (256, 64))]]
    places = {}
    for number, rows in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors(os.path.join(folder, name), tensors(*rows), {"format": "pt"})
        places.update({row[0]: name for row in rows})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
              "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
              "tie_word_embeddings": False, "dtype": "bfloat16"}
    for name, content in (("model.safetensors.index.json", {"metadata": {}, "weight_map": places}),
                          ("config.json", config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


def gguf(path):
    """A file of a Q8_0, an F32 and a Q4_K tensor; dimensions are fastest first."""
    def number(value, width=8):
        return value.to_bytes(width, "little")

    def text(words):
        return number(len(words)) + words.encode()

    words = b"".join(map(text, "abc"))
    keys = [("general.architecture", 8, text("llama")), ("llama.block_count", 4, number(1, 4)),
            ("tokenizer.ggml.tokens", 9, number(8, 4) + number(3) + words)]
    rows = [("token_embd.weight", 8, (64, 256), noise("U8", [34 * 2 * 256])),
            ("output_norm.weight", 0, (64,), bytes(4 * 64)),
            ("blk.0.ffn_down.weight", 12, (512, 64), noise("U8", [144 * 2 * 64]))]
    head = b"GGUF" + number(3, 4) + number(len(rows)) + number(len(keys))
    head += b"".join(text(key) + number(kind, 4) + value for key, kind, value in keys)
    data = b""
    for name, kind, dims, content in rows:
        head += text(name) + number(len(dims), 4) + b"".join(map(number, dims))
        head += number(kind, 4) + number(len(data))
        data += content + bytes(-len(content) % 32)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)


def make_models():
    """The files that pages name, in the current folder."""
    path = safetensors("model.safetensors", tensors(
        ("embed.weight", (1000, 64)), ("lin.weight", (64, 64)), ("lin.bias", (64,))),
        {"format": "pt"})
    with open(path, "rb") as file, open("broken.safetensors", "wb") as broken:
        broken.write(file.read()[:-40])
    llama(os.path.join("models", "llama"))
    gguf("model.gguf")


# ---- pages


class Block:
    """A fenced block: its language, the words behind that, its text, and the line of that."""

    def __init__(self, match, page):
        self.language, words, self.text = match.groups()
        self.words = words.split()
        self.line = page.count("\n", 0, match.start()) + 2
        self.end = match.end()

    def value(self, key):
        """What stands behind key= among the words."""
        return next((word[len(key) + 1:] for word in self.words if word.startswith(key + "=")), "")


def blocks(page):
    """The blocks of a page's text, each with the text that it is to print, or None."""
    found = [Block(match, page) for match in FENCE.finditer(page)]
    same(page.count("\n```") + page.startswith("```"), 2 * len(found), "lines that begin with ```")
    for block, following in zip(found, [*found[1:], None]):
        is_output = (following is not None and following.language == "text" and
                     not page[block.end:following_start(page, following)].strip())
        yield block, following.text if is_output else None


def following_start(page, block):
    """Where the fence of a block begins."""
    return page.rindex("```", 0, block.end - len(block.text) - 3)


def check_words(block):
    unknown = [word for word in block.words if word != "no-run" and
               not (block.language == "python" and word.startswith(("needs=", "file=")))]
    check(not unknown, f"line {block.line}: {unknown} means nothing")


def missing(block):
    """The modules that it needs and that are not installed."""
    return [name for name in block.value("needs").split(",")
            if name and importlib.util.find_spec(name) is None]


def compare(want, got, line):
    """Raises unless both are alike but for what is measured, the machine's, or where ... stands."""
    want, got = (MEASURED.sub("TIME", text) for text in (want, MACHINES.sub("", got)))
    check(doctest.OutputChecker().check_output(want, got, LIKENESS),
          f"line {line}: the page has\n{want}\nand it prints\n{got}")


class Page:
    """A page on its way."""

    def __init__(self, path):
        self.path = path
        self.names = {"__name__": "__main__"}

    def run(self):
        with open(self.path, encoding="utf-8") as file:
            page = file.read()
        for block, output in blocks(page):
            check_words(block)
            if block.language == "python":
                self.python(block, output)
            elif block.language == "console" and "no-run" not in block.words:
                self.console(block)

    @property
    def is_on_host(self):
        return self.names.get("device", "cpu") == "cpu"

    def python(self, block, output):
        # With the lines before it empty, a traceback names the page's own line.
        code = compile("\n" * (block.line - 1) + block.text, self.path, "exec")
        if block.value("file"):
            with open(block.value("file"), "w", encoding="utf-8") as file:
                file.write(block.text)
            return
        lacking = missing(block)
        if lacking:
            print(f"# line {block.line}: compiled only, {', '.join(lacking)} not installed")
        if lacking or "no-run" in block.words:
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.names)
        if output is not None and self.is_on_host:
            compare(output, printed.getvalue(), block.line)

    def console(self, block):
        """Each command, with the lines behind it as its output."""
        for piece in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            command, _, output = piece.partition("\n")
            if not command.startswith("python -m "):
                continue
            done = subprocess.run(shlex.split(command), timeout=LIMIT_S, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
            check(not done.returncode, f"line {block.line}: {command}: exit {done.returncode}: "
                                       f"{done.stderr}")
            if output and self.is_on_host:
                compare(output, done.stdout, block.line)


def run_page(path):
    """Runs a page in a scratch folder; an exception is what is wrong with it."""
    path, before = os.path.abspath(path), os.getcwd()
    with Scratch() as folder:
        # A script and no link: through a link Python does not see the environment that it is of.
        python = os.path.join(folder, "bin", "python")
        os.mkdir(os.path.dirname(python))
        with open(python, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        os.chmod(python, 0o755)
        os.environ.update(environment(
            PATH=os.path.dirname(python) + os.pathsep + os.environ["PATH"], HF_HUB_OFFLINE="1",
            TQDM_DISABLE="1", OMP_NUM_THREADS="1"))
        os.mkdir(os.path.join(folder, "here"))
        os.chdir(os.path.join(folder, "here"))
        try:
            make_models()
            Page(path).run()
        finally:
            os.chdir(before)


def page_process(path):
    """Runs a page in a process of its own. (exit status, what it printed)"""
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--page", path],
                          env=environment(), timeout=2 * LIMIT_S, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def add_case(name, modules):
    def page():
        for module in modules:
            need(module)
        status, said = page_process(os.path.join(GUIDE, name))
        check(status == 0, said)
        for line in said.splitlines():
            if line.startswith("# "):
                print(line)

    page.__name__ = "the_code_of_" + name.partition(".")[0].replace("-", "_") + "_runs"
    case(page)


for _name, _modules in PAGES.items():
    add_case(_name, _modules)


@case
def the_index_names_every_page_and_links_lead_to_files():
    pages = sorted(name for name in os.listdir(GUIDE) if name.endswith(".md"))
    same(pages, sorted([*PAGES, "README.md"]))
    for name in pages:
        with open(os.path.join(GUIDE, name), encoding="utf-8") as file:
            page = file.read()
        links = re.findall(r"\]\(([^)#:]+)\)", page)
        for link in links:
            check(os.path.exists(os.path.join(GUIDE, link)), f"{name}: {link} is not there")
        if name == "README.md":
            same(sorted(set(links) & set(PAGES)), sorted(PAGES), "pages in the index")


@case
def a_page_that_is_wrong_fails():
    wrong = {
        "raises": ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        "names the line": ("\n\n```python\nx = 1\nx.y\n```\n", "line 5"),
        "prints another": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "it prints"),
        "prints less": ("```python\n```\n```text\n2\n```\n", "it prints"),
        "is no Python": ("```python no-run\nfor\n```\n", "SyntaxError"),
        "needs what is not there": ("```python needs=no_such_module\nfor\n```\n", "SyntaxError"),
        "is not asked for so": ("```python norun\n```\n", "means nothing"),
        "fails as a command": ("```console\n$ python -m onehop load nothing\n```\n", "exit 1"),
        "says another as a command": ("```console\n$ python -m onehop list model.gguf\nw\n```\n",
                                      "it prints"),
        "is left open": ("```python\n1 / 1\n", "begin with ```"),
    }
    with Scratch() as folder:
        for what, (page, words) in wrong.items():
            path = os.path.join(folder, what + ".md")
            with open(path, "w", encoding="utf-8") as file:
                file.write(page)
            status, said = page_process(path)
            same(status, 1, what)
            holds(said, words)


@case
def a_page_that_is_right_passes():
    page = ("```python\nx = 3\nprint('took 1.5 ms', x)\n```\n\n```text\ntook 20 ms 3\n```\n"
            "```python\nprint('not compared')\n```\nWords.\n```text\nx\n```\n"
            "```python file=a.py\nprint(x)\n```\n```python no-run\nimport no_such_module\n```\n"
            "```console\n$ python -m onehop list model.gguf\n...\n$ no-such-command\n```\n"
            "```python\nassert open('a.py').read() == 'print(x)\\n' and x == 3\n```\n")
    with Scratch() as folder:
        path = os.path.join(folder, "page.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
        same(page_process(path), (0, ""))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--page"]:
        try:
            run_page(sys.argv[2])
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
    else:
        run()
