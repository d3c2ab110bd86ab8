"""Keeps the ledger, the specs and the files of shares what they shall be."""
