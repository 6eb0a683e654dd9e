"""plan.yaml to Plan, every fault with its line.

Files in reading order: schema.py (what a plan is), fields.py (YAML text to fields with lines, and
the typed readers of a field), loader.py (fields to Plan), check.py (rules between fields, alone
and against a model).
"""
