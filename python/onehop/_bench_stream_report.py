"""What `onehop bench stream` found, as tables and as a picture."""
from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ._bench_stream_child import BIN_S, Row

_WARM = ("scheme", "GB/s", "of the ceiling", "samples/s", "CPU copies a byte", "CPU s/GB",
         "reads and writes a sample", "switches a sample", "at 80 %: time in `next`",
         "of it waiting", "rate it reached", "first batch")
_COLD = ("scheme", "GB/s", "plain reads beside it, GB/s", "ratio", "least and most",
         "bytes read a byte", "stayed in the page cache")
_PACK = ("files", "of bytes", "pack, GB/s", "cp -r and sync, GB/s", "ratio", "least and most",
         "cp alone, GB/s")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    filled = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *filled)]


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _warm_cells(row: Row, ceiling: float) -> list[str]:
    if "missing" in row:
        return [row["label"], row["missing"]]
    return [row["label"], f"{row['gb_per_s']:.2f}", f"{row['gb_per_s'] / ceiling:.3f}",
            f"{row['samples_per_s']:,.0f}", row["copies"], f"{row['cpu_s_per_gb']:.2f}",
            f"{row['calls_per_sample']:.3f}", f"{row['switches_per_sample']:.3f}",
            _share(row["stall"]), _share(row.get("waiting")), f"{row['reached']:.3f}",
            f"{row['first_batch_s']:.2f} s"]


def _cold_cells(row: Row) -> list[str]:
    if "missing" in row:
        return [row["label"], row["missing"]]
    cells = [row["label"], f"{row['gb_per_s']:.2f}"]
    if "ratio" in row:
        cells += [f"{row['plain']:.2f}", f"{row['ratio']:.3f}",
                  f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}", f"{row['read']:.3f}"]
    else:
        cells += ["", "", "", ""]
    return [*cells, f"{row['kept']:,} bytes" if row["kept"] else ""]


def _samples(result: Row, found: Row) -> str:
    size = result["size"] if result["size"] == "mixed" else f"{int(result['size']):,} bytes"
    return (f"Samples: {size}, {result['samples']:,} of them, batch {found['batch']}, to "
            f"{found['device']}")


def _by_rate(result: Row) -> list[Row]:
    return sorted(result["rows"], key=lambda row: -row.get("gb_per_s", 0))


def markdown(found: Row) -> str:
    """The results as tables."""
    lines = []
    for result in found.get("sizes", ()):
        lines += [f"{_samples(result, found)}; ceiling {result['ceiling']:.2f} GB/s.", ""]
        lines += _table(_WARM, [_warm_cells(row, result["ceiling"]) for row in _by_rate(result)])
        lines.append("")
    for result in found.get("cold", ()):
        plain = ", ".join(f"{label} {rate:.2f}" for label, rate in result["plain"].items())
        lines += [f"{_samples(result, found)}, cold. Plain reads of the shards, GB/s: {plain}.", ""]
        lines += _table(_COLD, [_cold_cells(row) for row in _by_rate(result)])
        lines.append("")
    if "pack" in found:
        lines += _table(_PACK, [[f"{row['files']:,}", f"{row['size']:,}", f"{row['pack']:.2f}",
                                 f"{row['copy']:.2f}", f"{row['ratio']:.3f}",
                                 f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}",
                                 f"{row['unsynced']:.2f}"]
                                for row in found["pack"]])
        lines.append("")
    return "\n".join(lines)


def line(row: Row, ceiling: float, size: str) -> str:
    """A scheme's figures in words."""
    if "missing" in row:
        return f"{size:>8}  {row['label']:<28} -  {row['missing']}"
    words = (f"{size:>8}  {row['label']:<28} {row['gb_per_s']:7.2f} GB/s"
             f"  {row['gb_per_s'] / ceiling:5.3f} of {ceiling:.1f}"
             f"  {row['samples_per_s']:10.0f} samples/s  in next {_share(row['stall'])}")
    return words + (f", waiting {_share(row['waiting'])}" if "waiting" in row else "")


# ---- the picture


def _bars(panel: Any, sizes: Sequence[Row], colours: dict[str, Any]) -> None:
    """Each scheme's rate for each size."""
    shown: set[str] = set()
    font = 9 if len(sizes) * len(colours) <= 24 else 7.5
    for place, result in enumerate(sizes):
        rates = {row["label"]: row["gb_per_s"] for row in result["rows"] if "missing" not in row}
        width = 0.86 / max(1, len(rates))
        for number, (label, rate) in enumerate(rates.items()):
            at = place - 0.43 + (number + 0.5) * width
            panel.bar(at, rate, width * 0.92, color=colours[label],
                      label=None if label in shown else label)
            panel.annotate(f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}", (at, rate), (0, 3),
                           textcoords="offset points", ha="center", va="bottom", fontsize=font)
            shown.add(label)
        panel.hlines(result["ceiling"], place - 0.45, place + 0.45, color="black", linewidth=1.2,
                     label=None if place else "the ceiling")
    panel.set_xticks(range(len(sizes)), [_spoken(result["size"]) for result in sizes])
    panel.set_ylim(0, 1.1 * max(result["ceiling"] for result in sizes))
    panel.set(xlabel="samples of", ylabel="GB/s to the device", title="Rate")


def _spoken(size: str) -> str:
    if size == "mixed":
        return "50 KiB to 2 MiB"
    nbytes = int(size)
    return f"{nbytes / 1024:g} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):g} MiB"


def _over_time(panel: Any, values: Sequence[float], colour: Any, style: str = "-") -> None:
    panel.plot([BIN_S * i for i in range(len(values))], values, style, color=colour, linewidth=1.4)


def draw(found: Row, path: str) -> None:
    """Rates as bars, and each scheme's rate and stall over time for one size."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    sizes = found["sizes"]
    labels = list(dict.fromkeys(row["label"] for result in sizes for row in result["rows"]
                                if "missing" not in row))
    colours = dict(zip(labels, pyplot.get_cmap("tab10").colors))
    figure = pyplot.figure(figsize=(14, 10))
    grid = figure.add_gridspec(2, 2, height_ratios=(1.15, 1))
    bars, rates, stalls = (figure.add_subplot(place) for place in (grid[0, :], grid[1, 0],
                                                                   grid[1, 1]))
    _bars(bars, sizes, colours)
    shown = sizes[len(sizes) // 2]
    for row in shown["rows"]:
        if "missing" in row:
            continue
        colour = colours[row["label"]]
        _over_time(rates, [rate for rate, _ in row["timeline"]], colour)
        _over_time(stalls, [100 * stall for _, stall in row["stall_timeline"]], colour)
        _over_time(stalls, [100 * share for share in row.get("waiting_timeline", ())], colour, ":")
    rates.axhline(shown["ceiling"], color="black", linewidth=1.2)
    size = _spoken(shown["size"])
    rates.set(xlabel="seconds", ylabel="GB/s to the device", ylim=(0, None),
              title=f"Rate over time, samples of {size}")
    stalls.axhline(1, color="black", linewidth=0.8)
    stalls.set_yscale("symlog", linthresh=1)
    stalls.set_yticks((0, 1, 10, 100), ("0", "1", "10", "100"))
    stalls.set(xlabel="seconds", ylabel="% of the time", ylim=(0, 110),
               title=f"Consumer at 80 % of its rate, samples of {size}:\n"
                     "time in next (dotted: of it waiting for a batch, where it is told)")
    for panel in (bars, rates, stalls):
        panel.grid(alpha=0.3)
    figure.legend(*bars.get_legend_handles_labels(), loc="lower center", ncols=5, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110)
