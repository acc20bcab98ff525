"""Erases a person: plans the erasure, carries it out, scans for remains and writes a receipt."""
