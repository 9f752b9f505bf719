"""The audit: who changed what, when, and with what outcome; never content (API-4).

actions.py   what each operation and each tool changes: one table
recorder.py  writes the entries of a request before its changes, and the outcome afterwards
"""
