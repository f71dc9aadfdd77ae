"""The folder that ``python -m onehop run`` puts first in PYTHONPATH: see run.py."""
