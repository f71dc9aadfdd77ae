"""The nuScenes layout as records: JSON tables in ``v1.0-*/``, files in ``samples/``, ``sweeps/``.

Scenes are episodes, sensors' channels are streams. A lidar's ``.pcd.bin`` is float32 [points, 5]:
x, y, z, intensity, ring. Timestamps are the tables' microseconds, times 1000.
"""
from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from typing import Any

from .. import errors
from .input import reading
from .manifest import Record, Type

_LIDAR_COLUMNS = 5


def records(root: str) -> Iterator[Record]:
    """The records of all sensors, in the tables' order.

    Raises
    ------
    UnsupportedData
        There is no version folder, or more than one.
    Malformed
        A table is no JSON, or names what another does not have.
    """
    folder = _version(root)
    scenes = {row["token"]: row["name"] for row in _table(folder, "scene", "token", "name")}
    scene_of = {row["token"]: row["scene_token"]
                for row in _table(folder, "sample", "token", "scene_token")}
    channels = {row["token"]: row["channel"]
                for row in _table(folder, "sensor", "token", "channel")}
    channel_of = {row["token"]: channels.get(row["sensor_token"])
                  for row in _table(folder, "calibrated_sensor", "token", "sensor_token")}
    for row in _table(folder, "sample_data", "token", "sample_token", "calibrated_sensor_token",
                      "filename", "timestamp"):
        scene = scenes.get(scene_of.get(row["sample_token"], ""))
        channel = channel_of.get(row["calibrated_sensor_token"])
        if scene is None or channel is None:
            raise errors.Malformed(
                f"sample_data {row['token']} of {folder!r} belongs to no scene or sensor",
                "complete the tables")
        yield _record(root, scene, channel, row)


def _record(root: str, scene: str, channel: str, row: dict[str, Any]) -> Record:
    path, kind = row["filename"], None
    if path.endswith(".pcd.bin"):
        whole = os.path.join(root, path)
        with reading(whole, "a table names"):
            size = os.stat(whole).st_size
        if size % (4 * _LIDAR_COLUMNS):
            raise errors.Malformed(f"{whole!r} has {size} bytes, which are no rows of 5 float32",
                                   "get the file again")
        kind = Type("F32", (size // (4 * _LIDAR_COLUMNS), _LIDAR_COLUMNS))
    return Record(scene, channel, row["timestamp"] * 1000, path, type=kind)


def _version(root: str) -> str:
    found = [path for path in sorted(glob.glob(os.path.join(glob.escape(root), "v1.0*")))
             if os.path.isdir(path)]
    if len(found) != 1:
        raise errors.UnsupportedData(
            f"{root!r} has {len(found) or 'no'} version folder{'s' if found else ''} (v1.0-*)",
            "give the folder that holds samples/, sweeps/ and one v1.0-* folder")
    return found[0]


def _table(folder: str, name: str, *columns: str) -> list[dict[str, Any]]:
    path = os.path.join(folder, f"{name}.json")
    with reading(path, "a nuScenes table"), open(path, encoding="utf-8") as file:
        try:
            rows = json.load(file)
        except (ValueError, RecursionError) as error:
            raise errors.Malformed(f"{path!r} is no JSON: {error}", "get the file again") from error
    if not isinstance(rows, list):
        raise errors.Malformed(f"{path!r} is no list of rows", "get the file again")
    for number, row in enumerate(rows, 1):
        wrong = [column for column in columns if not isinstance(row, dict)
                 or not isinstance(row.get(column), int if column == "timestamp" else str)]
        if wrong:
            raise errors.Malformed(f"{path!r}, row {number}, has no {wrong[0]}",
                                   "get the file again")
    return rows
