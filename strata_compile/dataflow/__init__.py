"""Launches over a few windows of every group, and why one comes after another.

Reading order: `graph.py` (launches and reasons), `record.py` (drives the scheduler to get them).
"""
