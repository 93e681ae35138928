"""English of questions and objects: word tables, times, routes, and renderings of objects.

Owns the tables in `opdbus/tables/`. `object_text` renders what is embedded and indexed; the other
modules read words and times of a question. Imports errors, platform and state.
"""
