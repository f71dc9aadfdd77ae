"""A folder served slowly: with Mount(folder) as mount, whose path is mount.path.

usage of each test: test_X.py ONEHOP FS DRIVER    (the command, the test file system of fs.c or an
empty word, the folder of the look-alike libcuda.so.1)
"""
import os
import selectors
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "command"), os.path.join(HERE, "..", "build")]

from tap import Skip

FS = sys.argv[2] and os.path.abspath(sys.argv[2])
DRIVER = os.path.abspath(sys.argv[3])


def first_line(child, seconds):
    """What a child prints first; nothing if it ends or the time is over."""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        return child.stdout.readline() if selector.select(seconds) else b""


class Mount:
    """words: options of fs.c."""

    def __init__(self, folder, *words):
        if not FS:
            raise Skip("libfuse3 was not found when this was built")
        if os.geteuid() != 0:
            raise Skip("only root may mount")
        if not os.path.exists("/dev/fuse"):
            raise Skip("there is no /dev/fuse")
        self.folder, self.words = folder, words

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="onehop-fuse-")
        self.server = subprocess.Popen([FS, *self.words, self.folder, self.path],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE)
        if first_line(self.server, 20) != b"ready\n":
            said = self.end()
            raise Skip(f"FUSE does not mount here: {said}")
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Unmounts. Gives what the server said of errors."""
        self.server.terminate()
        try:
            said = self.server.communicate(timeout=10)[1]
        except subprocess.TimeoutExpired:
            self.server.kill()
            said = self.server.communicate()[1]
        # What a dead server leaves is still mounted, although no call on it says so.
        subprocess.run(["umount", "-l", self.path], check=False, stderr=subprocess.DEVNULL)
        os.rmdir(self.path)
        return said.decode(errors="replace").strip()

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def control(self, *words):
        file = os.open(self / ".control", os.O_WRONLY)
        try:
            os.write(file, " ".join(map(str, words)).encode())
        finally:
            os.close(file)

    def stats(self):
        """The counters by name, and "hit": (file, offset, bytes) of the read that met a fault."""
        with open(self / ".stats", "rb", buffering=0) as file:
            lines = file.read(4096).decode().splitlines()
        found = dict(line.split(" ", 1) for line in lines)
        hit = found.pop("hit").rsplit(" ", 2)
        found = {name: int(number) for name, number in found.items()}
        found["hit"] = (hit[0], int(hit[1]), int(hit[2])) if len(hit) == 3 else None
        return found
