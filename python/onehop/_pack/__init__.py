"""What ``onehop pack`` is made of; `onehop.packing` drives it.

`input` is the protocol between kinds of input and the packer; `manifest`, `nuscenes`, `mcap`,
`rosbag`, `log`, `lerobot`, `tar`, `table` and `tree` are such kinds, and `episodes` joins some.
`runs` and `rows` put records in order, `work` writes shards, `state` remembers them.
"""
