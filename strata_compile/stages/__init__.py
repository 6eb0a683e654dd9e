"""Model graph to stages: `partition.py`."""
