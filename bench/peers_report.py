"""Tables and a picture of what bench/peers.py found."""
from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MIB = 1 << 20
COLOURS = ["#1b6ca8", "#e08e0b", "#5f9e3f", "#8a5fa8"]

Found = Mapping[str, Any]
Table = tuple[str, list[str], list[list[str]]]


def rate(row: Found, kind: str) -> float | None:
    """Bytes a second, by the median of the loads; None if there are none, or none that count."""
    seconds = row.get(kind)
    return row["bytes"] / statistics.median(seconds) if seconds and row["state"] == "ok" else None


def labels(found: Found) -> list[str]:
    """The models that were loaded, in their order."""
    return list(dict.fromkeys(row["model"] for row in found["results"]))


def ranked(found: Found, label: str) -> list[Found]:
    """A model's rows that count, the quickest first load first."""
    rows = [row for row in found["results"] if row["model"] == label and rate(row, "first")]
    return sorted(rows, key=lambda row: -(rate(row, "first") or 0))


def _rates(row: Found, kind: str, ceiling: float | None) -> list[str]:
    """GB/s, the share of the ceiling, and the spread with the number of loads."""
    value = rate(row, kind)
    if value is None:
        return ["-", "-", "-"]
    gigabytes = [row["bytes"] / seconds / 1e9 for seconds in row[kind]]
    spread = f"{min(gigabytes):.1f}-{max(gigabytes):.1f} ({len(gigabytes)})"
    return [f"{value / 1e9:.2f}", f"{value / ceiling:.3f}" if ceiling else "-", spread]


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / MIB:.0f}"


MEMORY = ["host MiB", "anon MiB", "rss MiB", "GPU MiB", "GPU peak", "reserved"]
"""Growth of the machine's used memory, of the process's anonymous memory and of its resident set
(page cache that is mapped included), during the first load; GPU memory beyond the tensors, after it
and at most; what torch's allocator reserves for each byte that it gave out."""


def _memory(row: Found) -> list[str]:
    memory, peak = row.get("memory"), row.get("device_peak")
    if memory is None:
        return ["-"] * len(MEMORY)
    host = [_mib(memory[name]) for name in ("system", "anonymous", "rss_peak")]
    allocated, reserved = memory.get("allocated", 0), memory.get("reserved", 0)
    # Some loaders' tensors are in memory of their own, of which torch's allocator knows nothing.
    share = f"{reserved / allocated:.3f}" if allocated > row["bytes"] // 2 else "-"
    return host + [_mib(memory["device_used"] - row["bytes"]),
                   _mib(None if peak is None else peak - row["bytes"]), share]


def load_table(found: Found, label: str) -> Table:
    ceiling = found.get("ceiling")
    is_cuda = found["device"].startswith("cuda")
    head = ["scheme", "kind", "first GB/s", "share", "range (n)", "again GB/s", "share",
            "range (n)", *(MEMORY if is_cuda else [])]
    rows = [[row["scheme"], row["kind"], *_rates(row, "first", ceiling),
             *_rates(row, "again", ceiling), *(_memory(row) if is_cuda else [])]
            for row in ranked(found, label)]
    model = next(each for each in found["models"] if each["model"] == label)
    title = (f"{label}: {model['tensors']:,} tensors, {model['bytes']:,} bytes, "
             f"{model['files']} files on {model['file_system']}, warm page cache")
    return title, head, rows


def settings_table(found: Found) -> Table:
    rows = [[row["scheme"], row["model"], row.get("version", ""), row["setting"] or "defaults"]
            for row in found["results"]
            if row["state"] == "ok" and (row["setting"] or row["model"] == labels(found)[0])]
    return "settings", ["scheme", "files", "version", "setting"], rows


def reasons_table(found: Found) -> Table:
    """What has no place, and why."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for part in ("results", "tiny", "cold", "token"):
        for row in found[part]:
            if row["state"] != "ok":
                key = (row["scheme"], row["state"], row["reason"])
                where.setdefault(key, []).append(row.get("model", part))
    rows = [[scheme, ", ".join(files), state, reason]
            for (scheme, state, reason), files in where.items()]
    return "not ranked", ["scheme", "files", "state", "reason"], rows


def tiny_table(found: Found) -> Table:
    rows = []
    for row in found["tiny"]:
        if row["state"] == "ok":
            first = [1e3 * seconds for seconds in row["first"]]
            imports = [1e3 * seconds for seconds in row["imports"]]
            rows.append([row["scheme"], f"{statistics.median(imports):.1f}",
                         f"{statistics.median(first):.1f}", f"{min(first):.1f}-{max(first):.1f}"])
    rows.sort(key=lambda row: float(row[2]))
    alone = "; ".join(f"import {module} by itself: {1e3 * statistics.median(seconds):.1f} ms"
                      for module, seconds in found["imports"].items())
    title = "start-up: 1 MiB, from the import to the tensors, torch and its context being up"
    return (f"{title} ({alone})" if alone else title,
            ["scheme", "import ms", "import and load ms", "range"], rows)


def stages_table(found: Found) -> Table:
    """onehop's own account of its loads."""
    names: list[str] = []
    kept = [(row, kind, report) for row in found["results"]
            for kind, report in row.get("reports", {}).items()]
    for _, _, report in kept:
        names += [name for name in report["phases"] if name not in names]
    rows = [[row["model"], kind, f"{1e3 * report['seconds']:.1f}",
             *(f"{1e3 * report['phases'].get(name, 0):.1f}" for name in names),
             _mib(report["staging_bytes"]), "+".join(report["routes"])]
            for row, kind, report in kept]
    return ("onehop.load by its own report, ms (the tensors are made during the transfer)",
            ["files", "load", "all", *names, "ring MiB", "routes"], rows)


def cold_table(found: Found) -> Table:
    rows = []
    for row in found["cold"]:
        if row["state"] == "ok" and row.get("first"):
            # Its rate for each byte a second of onehop's.
            ratios = [ours / theirs for theirs, ours in zip(row["first"], row["beside"]) if ours]
            value = rate(row, "first") or 0
            own = [row["bytes"] / seconds / 1e9 for seconds in row["beside"] if seconds]
            rows.append([row["scheme"], row["kind"], f"{value / 1e9:.2f}",
                         f"{statistics.median(own):.2f}" if own else "-",
                         f"{statistics.median(ratios):.2f}" if ratios else "-", str(len(ratios))])
    return ("cold: nothing in the page cache, each load beside one by onehop.load",
            ["scheme", "kind", "GB/s", "onehop.load GB/s", "of onehop.load", "pairs"], rows)


def token_table(found: Found) -> Table:
    good = [row for row in found["token"] if row["state"] == "ok"]
    good.sort(key=lambda row: float(row["seconds"]))
    names = list(good[0]["stages"]) if good else []
    rows = [[row["scheme"], row["kind"], f"{row['seconds']:.2f}",
             *(f"{row['stages'][name]:.3f}" for name in names)] for row in good]
    return ("from the process's start to the first token of a small decoder, s",
            ["scheme", "kind", "all", *names], rows)


def tables(found: Found) -> list[Table]:
    """All that have rows."""
    made = [load_table(found, label) for label in labels(found)]
    made += [tiny_table(found), stages_table(found), cold_table(found), token_table(found),
             settings_table(found), reasons_table(found)]
    return [table for table in made if table[2]]


def heading(found: Found) -> list[str]:
    """Where it was measured, and the ceiling."""
    machine = found["machine"]
    lines = [f"{', '.join(machine.get('gpus', ['no GPU']))}; {machine['cores']} cores, kernel "
             f"{machine['kernel']}, Python {machine['python']}; device {found['device']}"]
    if found.get("ceiling"):
        parts = [f"{name} {each[name] / 1e9:.2f} ({when})"
                 for when, each in found["ceilings"].items()
                 for name in ("torch", "onehop") if each.get(name)]
        lines.append(f"ceiling {found['ceiling'] / 1e9:.2f} GB/s: {', '.join(parts)}")
    if not found["device"].startswith("cuda"):
        lines.append("on the host safetensors maps its files, and reads them when tensors are used")
    checks = sum(row.get("checks", 0) for row in found["results"])
    wrong = sum(row["state"] == "differs" for row in found["results"])
    lines.append(f"{checks} loads compared with what was written; {wrong} schemes differ; "
                 f"{found.get('seconds', 0):.0f} s for all")
    return lines


def text(found: Found) -> str:
    """The tables for a terminal."""
    lines = heading(found)
    for title, head, rows in tables(found):
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        lines += ["", title]
        lines += ["  ".join(_cell(row[column], widths[column], rows, column)
                            for column in range(len(head))).rstrip() for row in [head, *rows]]
    return "\n".join(lines)


def _cell(words: str, width: int, rows: Sequence[Sequence[str]], column: int) -> str:
    """Numbers to the right, words to the left."""
    is_number = all(row[column][:1] in "-0123456789" for row in rows) and column > 0
    return words.rjust(width) if is_number else words.ljust(width)


def markdown(found: Found) -> str:
    """The tables for a document."""
    lines = [*(line + "  " for line in heading(found))]
    for title, head, rows in tables(found):
        lines += ["", f"**{title}**", "", "| " + " | ".join(head) + " |",
                  "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
                  for row in rows]
    return "\n".join(lines) + "\n"


def draw(found: Found, path: str) -> None:
    """Two panels of bars: first and later loads as shares of the ceiling, a colour a model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ceiling = found.get("ceiling") or 1.0
    models = labels(found)

    def best(name: str) -> float:
        return max((rate(row, "first") or 0) for row in found["results"] if row["scheme"] == name)

    names = list(dict.fromkeys(row["scheme"] for row in found["results"] if rate(row, "first")))
    names.sort(key=best)
    thickness = 0.8 / max(1, len(models))
    figure, panels = pyplot.subplots(1, 2, sharey=True,
                                     figsize=(11, 1.5 + 0.42 * max(1, len(names))))
    for panel, kind, title in zip(panels, ("first", "again"), (
            "first load of a process", "again, in the same process")):
        for number, label in enumerate(models):
            shares = {row["scheme"]: (rate(row, kind) or 0) / ceiling
                      for row in found["results"] if row["model"] == label}
            heights = [place + 0.4 - (number + 0.5) * thickness for place in range(len(names))]
            panel.barh(heights, [shares.get(name, 0) for name in names], thickness * 0.92,
                       label=label, color=COLOURS[number % len(COLOURS)])
        panel.axvline(1, color="black", linewidth=1)
        panel.set_xlim(0, 1.05)
        panel.set_xlabel("share of the link's ceiling")
        panel.set_title(title)
        panel.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(-0.6, max(1, len(names)) - 0.4)
    for tick in panels[0].get_yticklabels():
        if tick.get_text().startswith("onehop"):
            tick.set_fontweight("bold")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="lower right", ncols=len(models) or 1,
                  fontsize=9, frameon=False)
    figure.suptitle(f"{', '.join(found['machine'].get('gpus', ['host'])[:1])}: ceiling "
                    f"{ceiling / 1e9:.1f} GB/s, warm page cache", fontsize=10)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=130)
