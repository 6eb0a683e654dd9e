"""Programs and memory plan to a folder: `manifest.py` (what it says), `write.py` (how it lands)."""
